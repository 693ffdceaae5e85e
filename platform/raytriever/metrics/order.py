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
        # Half as wide, so that more of them stay in the processor's cache.
        places, by_place = ties.astype(np.uint32), np.empty(len(ties), np.uint32)
        by_place[ties] = np.arange(len(ties), dtype=np.uint32)
        step = max(1, BLOCK_RESULTS // ranking.shape[1])
        for start in range(0, len(unsorted), step):
            rows = unsorted[start : start + step]
            keys = _keys(values, ranking, rows, places)
            keys.sort(axis=1)
            _read(keys, rows, by_place, ranking)
    return ranking


@numba.njit(cache=True)
def _keys(values, documents, rows, places):  # type: ignore[no-untyped-def]
    """One integer a result, ascending from the best: its score's bits in reverse order, then its place among equals."""
    keys = np.empty((len(rows), values.shape[1]), np.uint64)
    for number, row in enumerate(rows):
        bits = (values[row] + np.float32(0)).view(np.uint32)  # -0 becomes 0
        for rank in range(values.shape[1]):
            document = documents[row, rank]
            if document < 0:
                keys[number, rank] = NONE
                continue
            one = bits[rank]
            best_first = one if one >> np.uint32(31) else ~one & np.uint32(0x7FFFFFFF)
            keys[number, rank] = np.uint64(best_first) << np.uint64(32) | np.uint64(places[document])
    return keys


@numba.njit(cache=True)
def _read(keys, rows, by_place, documents):  # type: ignore[no-untyped-def]
    """Write the documents that sorted keys stand for."""
    for number, row in enumerate(rows):
        for rank in range(keys.shape[1]):
            key = keys[number, rank]
            documents[row, rank] = -1 if key == NONE else np.int64(by_place[key & np.uint64(0xFFFFFFFF)])


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
