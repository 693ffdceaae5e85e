"""The score of a pair: float32 of its dot product in float64, by one routine whatever found the pair.

The product of two float32 numbers is exact in float64, and the sums are taken in an order that depends on the width
alone: element i is added to elements i + h, i + 2h, ... with h an eighth of the width, then halves are folded. So a
score is within one rounding of the true dot product and has the same bits in every block, shard, thread, device
and processor. The loops run along independent sums, which is how a compiler may use vectors without reordering them.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from jaxtyping import Float32, Int64
from numba import prange
from numpy import ndarray


def pair_scores(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    of: Int64[ndarray, " pairs"],
    to: Int64[ndarray, " pairs"],
) -> Float32[ndarray, " pairs"]:
    """Scores of given pairs, bit for bit those that a search gives them.

    Raises:
        IndexError: a position is not among the queries or the documents.
    """
    for rows, held in ((of, queries), (to, documents)):
        if len(rows) and (rows.min() < 0 or rows.max() >= len(held)):
            raise IndexError(f"positions must be in [0, {len(held)})")
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    scores = np.empty(len(of), np.float32)
    _score_pairs(read_only(queries), read_only(documents), of, to, scores)
    return scores


def read_only(vectors: Float32[ndarray, "rows width"]) -> Float32[ndarray, "rows width"]:
    """A view that may not be written, as memory-mapped embeddings may not: compiled code tells the two apart."""
    view = np.ascontiguousarray(vectors, np.float32).view()
    view.flags.writeable = False
    return view


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _score_pairs(queries, documents, of, to, scores):  # type: ignore[no-untyped-def]
    for pair in prange(len(of)):
        query = queries[of[pair]].astype(np.float64)
        scores[pair] = dot(query, documents[to[pair]], np.empty(len(query)))


@numba.njit(cache=True, error_model="numpy")
def dot(query, document, sums):  # type: ignore[no-untyped-def]
    """The score of a float64 copy of a query and a float32 document; `sums` is room for width // 8 numbers."""
    width = len(query)
    h = width // 8
    for i in range(h):
        sums[i] = (
            (query[i] * np.float64(document[i]) + query[i + h] * np.float64(document[i + h]))
            + (query[i + 2 * h] * np.float64(document[i + 2 * h]) + query[i + 3 * h] * np.float64(document[i + 3 * h]))
        ) + (
            (query[i + 4 * h] * np.float64(document[i + 4 * h]) + query[i + 5 * h] * np.float64(document[i + 5 * h]))
            + (query[i + 6 * h] * np.float64(document[i + 6 * h]) + query[i + 7 * h] * np.float64(document[i + 7 * h]))
        )
    total = 0.0
    for i in range(8 * h, width):
        total += query[i] * np.float64(document[i])
    while h > 8:
        half = (h + 1) // 2
        for i in range(h - half):
            sums[i] = sums[i] + sums[i + half]
        h = half
    for i in range(h):
        total += sums[i]
    # A score that rounds to -0 equals one that rounds to 0.
    return np.float32(total) + np.float32(0)
