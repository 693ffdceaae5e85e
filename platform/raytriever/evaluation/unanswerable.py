"""Questions without an answer in the corpus that are made for an evaluation: `--unanswerable removed hard PATH`.

A data set may name such questions (kind `given`). Others are made on request:

- `removed`: every second question loses its answers: its relevant documents, and their copies, are not searched. It
  needs no new text, so all questions without their answers are measured at every threshold in any case.
- `hard`: an entity of a question is replaced by another one of the corpus; see `data.unanswerable`.
- `foreign`: the questions of another data set, which no document of this corpus answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.data.prepare.pipeline import in_processes
from raytriever.data.unanswerable import hard_questions, with_questions
from raytriever.errors import DataError, setting
from raytriever.evaluation.aims import ANSWER_AIMS
from raytriever.evaluation.datasets import EvaluationDataset
from raytriever.evaluation.protocol import FOREIGN, HARD, REMOVED
from raytriever.evaluation.request import EvaluationJob, OpenPart
from raytriever.metrics.answering import check_enough
from raytriever.metrics.inputs import MetricInputError

_SEED = 0


def add_unanswerable(
    part: OpenPart, kinds: Sequence[str], max_bad_rows: float, split_elsewhere: str | None = None
) -> OpenPart:
    """Return a part of a data set with the questions that the evaluation asks for, in each of its splits.

    Args:
        kinds: `removed`, `hard` and data sets, as in `EvaluationJob.unanswerable`.
        max_bad_rows: accepted share of bad rows of the other data sets, 0 to 1.
        split_elsewhere: split of the other data sets; None for the one of the same name.
    """
    dataset, judged = part.dataset, dict(part.judged)
    for split in judged:
        made = dict(judged[split].unanswerable)
        for number, word in enumerate(kinds):
            if word == REMOVED:
                continue
            kind = HARD if word == HARD else FOREIGN
            texts = (
                _hard(dataset, split, part) if word == HARD else _foreign(word, split_elsewhere or split, max_bad_rows)
            )
            first = len(dataset.queries)
            dataset = with_questions(dataset, split, texts, f"{kind}-{split}-{number}")
            added = np.arange(first, first + len(texts))
            made[kind] = np.concatenate([made[kind], added]) if kind in made else added
        judged[split] = replace(judged[split], unanswerable=made)
    # All splits see the questions of all: positions of the others stay.
    return OpenPart(part.name, dataset, {split: replace(one, dataset=dataset) for split, one in judged.items()})


def check_enough_questions(parts: Sequence[OpenPart], source: EvaluationDataset, job: EvaluationJob) -> None:
    """Raise `DataError` if a data set has too few questions for a threshold of answers, before a text is encoded."""
    if not any(aim in ANSWER_AIMS for aim, _ in job.aims):
        return
    judged = [one for part in parts for one in part.judged.values()]
    try:
        check_enough(sum(len(one.queries) + sum(map(len, one.unanswerable.values())) for one in judged))
    except MetricInputError as error:
        raise DataError(error.what, source.name, error.remedy) from error


def _hard(dataset: RetrievalDataset, split: str, part: OpenPart) -> list[str]:
    texts = list(hard_questions(dataset, part.judged[split].queries, _SEED).values())
    if not texts:
        raise DataError(
            "no question has an entity that can be replaced", f"{dataset.name}, split {split!r}", f"leave out {HARD}"
        )
    return texts


def _foreign(path: str, split: str, max_bad_rows: float) -> list[str]:
    """Return the questions of a split of another data set."""
    other = open_dataset(path, [split], max_bad_rows=max_bad_rows, run=in_processes)
    texts = [str(other.queries.texts[query]) for query in other.relevant_queries(split).tolist()]
    if not texts:
        raise DataError(
            "has no question", f"{other.name}, split {split!r}", f"leave it out of {setting('unanswerable')}"
        )
    return texts
