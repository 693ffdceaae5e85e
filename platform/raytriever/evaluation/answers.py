"""Acc@k: the share of queries with an answer string in one of the k best passages (Karpukhin et al., 2020, DPR)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy import ndarray

from raytriever.data.copies import normalise
from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import DataError, setting
from raytriever.metrics.ranking import accuracy
from raytriever.metrics.relevance import PerQuery
from raytriever.mining.filters import contains_answer

ACCURACY = "accuracy_at_"


def accuracy_cutoff(name: str) -> int | None:
    """Return K of the metric name `accuracy_at_K`; None for any other name."""
    cutoff = name.removeprefix(ACCURACY)
    return int(cutoff) if name.startswith(ACCURACY) and cutoff.isascii() and cutoff.isdecimal() else None


def check_answers(dataset: RetrievalDataset, split: str, queries: ndarray) -> None:
    """Raise `DataError` unless every query has an answer; queries are positions in the data set."""
    answered = dataset.answers.queries if dataset.answers is not None else np.zeros(0, np.int64)
    unanswered = np.setdiff1d(queries, answered)
    if len(unanswered):
        raise DataError(
            f"query {dataset.queries.ids[int(unanswered[0])]!r} has no answers",
            f"{dataset.name}, split {split!r}",
            f"leave acc@K out of {setting('metrics')}, or add answers.jsonl (docs/reference/formats.md)",
        )


def accuracy_per_query(
    dataset: RetrievalDataset, split: str, queries: ndarray, ranking: ndarray, cutoffs: Collection[int]
) -> dict[str, PerQuery]:
    """Compute Acc@K of each query: 1 if one of its K best passages holds an answer, else 0.

    Passages are read with their titles, from the best on, until one holds an answer.

    Args:
        dataset: a data set with answers.
        split: name of the split, for the error message.
        queries: positions in the data set.
        ranking: documents of each query, `[queries, depth]`, best first, -1 for none.
        cutoffs: values of K, each at most the depth.

    Returns:
        Values by metric name, `accuracy_at_K`; empty without cutoffs.

    Raises:
        DataError: a query has no answers.
    """
    if not cutoffs:
        return {}
    check_answers(dataset, split, queries)
    answers = dataset.answers
    assert answers is not None
    hits = np.zeros((len(queries), max(cutoffs)), bool)
    for row, query in enumerate(queries.tolist()):
        answer_texts = [normalise(answer) for answer in answers.of(query)]
        for rank, document in enumerate(ranking[row, : max(cutoffs)].tolist()):
            if document >= 0 and contains_answer(normalise(dataset.passage_text(document)), answer_texts):
                hits[row, rank] = True
                break
    return {f"{ACCURACY}{cutoff}": accuracy(hits, cutoff) for cutoff in cutoffs}
