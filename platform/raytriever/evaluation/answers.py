"""Acc@k over a data set's answers: whether one of the k best passages holds an answer (Karpukhin et al., 2020, DPR)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.errors import DataError
from raytriever.metrics.ranking import accuracy
from raytriever.metrics.relevance import PerQuery
from raytriever.mining.filters import contains_answer, normalise

ACCURACY = "accuracy_at_"


def cutoff_of(name: str) -> int | None:
    """The cutoff of `accuracy_at_K`; None for any other name."""
    cutoff = name.removeprefix(ACCURACY)
    return int(cutoff) if name.startswith(ACCURACY) and cutoff.isascii() and cutoff.isdecimal() else None


def check_answers(dataset: RetrievalDataset, split: str, queries: ndarray) -> None:
    """Raise `DataError` unless each of the queries, positions in the data set, has an answer."""
    there = dataset.answers.queries if dataset.answers is not None else np.zeros(0, np.int64)
    without = np.setdiff1d(queries, there)
    if len(without):
        raise DataError(
            f"query {dataset.queries.ids[int(without[0])]!r} has no answers",
            f"{dataset.name}, split {split!r}",
            "leave acc@K out of --metrics, or add answers.jsonl (docs/reference/formats.md)",
        )


def accuracy_per_query(
    dataset: RetrievalDataset, split: str, queries: ndarray, ranking: ndarray, cutoffs: Collection[int]
) -> dict[str, PerQuery]:
    """1 where one of the K best passages holds an answer, else 0, by name; nothing where no cutoff is asked for.

    Passages are read from the best on until one holds an answer, titles included.

    Args:
        dataset: with answers.
        split: named where there are none.
        queries: positions in the data set.
        ranking: their documents, `[queries, depth]`, best first, -1 for none.
        cutoffs: the K, each at most the depth.

    Raises:
        DataError: as `check_answers`.
    """
    if not cutoffs:
        return {}
    check_answers(dataset, split, queries)
    answers = dataset.answers
    assert answers is not None
    hits = np.zeros((len(queries), max(cutoffs)), bool)
    for row, query in enumerate(queries.tolist()):
        wanted = [normalise(answer) for answer in answers.of(query)]
        for rank, document in enumerate(ranking[row, : max(cutoffs)].tolist()):
            if document >= 0 and contains_answer(normalise(dataset.passage_text(document)), wanted):
                hits[row, rank] = True
                break
    return {f"{ACCURACY}{cutoff}": accuracy(hits, cutoff) for cutoff in cutoffs}
