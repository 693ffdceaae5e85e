"""The order of results: by score, as float32, descending; equal scores by document id, descending.

That is trec_eval's order, which casts scores to float32 first. So a ranking that is measured here, and a run file of
the same scores that any other tool reads, give the same figures.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, refuse_nan
from raytriever.metrics.relevance import Ranking

# Rows sorted at once: what a block needs stays in the processor's cache.
BLOCK_RESULTS = 1 << 17
NONE = np.uint64(2**64 - 1)


def order_results(
    scores: Float[ndarray, "queries depth"],
    documents: Int64[ndarray, "queries depth"],
    ties: Int64[ndarray, " documents"],
) -> Ranking:
    """The documents of each query, best first. Rows that are in order already are looked at and not sorted.

    Args:
        scores: of any range, infinities allowed.
        documents: document positions; -1 for none, which ends last whatever its score.
        ties: each document's place among equals, a permutation: 0 for the id that sorts last.

    Raises:
        MetricInputError: a score is NaN, or there are 2^32 documents or more.
    """
    if len(ties) >= 2**32:
        raise MetricInputError(f"{len(ties)} documents", "ranking", "fewer than 2^32 are expected")
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = np.ascontiguousarray(scores, np.float32)
    refuse_nan(values, "scores of the ranking")
    ranking = np.array(documents, np.int64, order="C")
    unsorted = np.flatnonzero(~_in_order(values, ranking, ties))
    if len(unsorted):
        by_place = np.empty(len(ties), np.int64)
        by_place[ties] = np.arange(len(ties))
        step = max(1, BLOCK_RESULTS // ranking.shape[1])
        for start in range(0, len(unsorted), step):
            rows = unsorted[start : start + step]
            ranking[rows] = _sorted(values[rows], ranking[rows], ties, by_place)
    return ranking


def _sorted(values: ndarray, documents: ndarray, ties: ndarray, by_place: ndarray) -> ndarray:
    """One integer a result, ascending from the best: its score's bits in reverse order, then its place among equals."""
    bits = (values + np.float32(0)).view(np.uint32)  # -0 becomes 0
    best_first = np.where(bits >> 31 > 0, bits, ~bits & np.uint32(0x7FFFFFFF))
    keys = best_first.astype(np.uint64) << np.uint64(32) | ties[documents].astype(np.uint64)
    keys[documents < 0] = NONE
    keys.sort(axis=1)
    places = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return np.where(keys == NONE, -1, by_place[np.minimum(places, len(by_place) - 1)])


@numba.njit(cache=True)
def _in_order(values, documents, ties):  # type: ignore[no-untyped-def]
    """For each row whether scores descend, equal ones by place, and what there is not stands last."""
    ordered = np.ones(values.shape[0], np.bool_)
    for row in range(values.shape[0]):
        for rank in range(1, values.shape[1]):
            before, here = documents[row, rank - 1], documents[row, rank]
            if here < 0:
                continue
            score = values[row, rank]
            if before < 0 or values[row, rank - 1] < score:
                ordered[row] = False
                break
            if values[row, rank - 1] == score and ties[before] > ties[here]:
                ordered[row] = False
                break
    return ordered
