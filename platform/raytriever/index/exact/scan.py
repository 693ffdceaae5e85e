"""Exact search on a CPU, block after block: FAISS proposes documents, and those that may count are scored exactly.

1. FAISS's flat search returns a few more than k documents of a block, with quick scores in float32. The error of a
   quick score has a proven bound (`index.score`).
2. At least k documents score no less than the k-th highest quick score minus its error. A document whose quick score
   plus its error is below that, or below the k-th score of the earlier blocks, is excluded.
3. The others are scored exactly and merged into the ranking. If even the last document that FAISS returned is among
   them, others may be missing, and the query is searched again with more documents, in the end with all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt64
from numpy import ndarray

from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, TieOrder, keys_of, merge_keys
from raytriever.index.score import LARGEST_NORM, check_finite, error_terms, pair_scores

# Queries that are searched at a time, and pairs of these and documents that are scored at a time.
QUERY_TILE, MOST_PAIRS = 1_024, 1 << 21
# Documents in addition to k, and the growth of their number for a query whose ranking was not proven.
MORE, _GROWTH = 32, 4


class Scan:
    """Rankings of queries over the blocks added so far.

    Args:
        queries: one embedding per row.
        k: number of documents per query.
        order: order of equal scores.
        exclude: for each query a document that is not returned, or -1.
        before: rankings of the blocks of an earlier scan, changed in place; None for none.
    """

    def __init__(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        order: TieOrder,
        exclude: Int64[ndarray, " queries"] | None,
        before: UInt64[ndarray, "queries k"] | None = None,
    ) -> None:
        refuse_forked()
        self._queries, self._order = np.ascontiguousarray(queries, np.float32), order
        self._excluded = np.full(len(queries), -1) if exclude is None else np.asarray(exclude, np.int64)
        self._best = np.full((len(queries), k), NONE) if before is None else before
        norms = _norms(self._queries, "query", np.arange(len(queries)))
        self._slope, _, self._offset = error_terms(norms, np.zeros_like(norms), queries.shape[1])
        self._faiss: Any = import_module("faiss")

    def add(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> None:
        """Search a block of documents.

        Args:
            positions: positions in the corpus.
            vectors: embeddings of these documents.
        """
        if not len(vectors) or not self._best.size:
            return
        errors = self._slope * _norms(vectors, "document", positions).max() + self._offset
        is_bounded = np.isfinite(errors)
        self._search(np.flatnonzero(is_bounded), self._best.shape[1] + MORE, errors, positions, vectors)
        self._search(np.flatnonzero(~is_bounded), len(vectors), errors, positions, vectors)

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """Return the rankings as ascending keys."""
        return self._best

    def _search(
        self, queries: Int64[ndarray, " some"], wanted: int, errors: ndarray, positions: ndarray, vectors: ndarray
    ) -> None:
        """Merge a block into the rankings of some queries; FAISS returns `wanted` documents of each."""
        k, size = self._best.shape[1], len(vectors)
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        step = max(1, min(QUERY_TILE, MOST_PAIRS // min(wanted, size)))
        for start in range(0, len(queries), step):
            some = queries[start : start + step]
            if wanted >= size:
                rows = np.broadcast_to(np.arange(size), (len(some), size))
                self._merge(some, rows, np.ones(rows.shape, bool), positions, vectors)
                continue
            metric = self._faiss.METRIC_INNER_PRODUCT
            quick, rows = self._faiss.knn(self._queries[some], vectors, wanted, metric=metric)
            quick, error = quick.astype(np.float64), errors[some, None]
            earlier = self._order.read(self._best[some, -1:])[0]
            # One more than the k-th score, because one document may be excluded.
            is_candidate = quick >= np.maximum(earlier, quick[:, k : k + 1] - error) - error
            is_proven = ~is_candidate[:, -1]
            self._merge(some[is_proven], rows[is_proven], is_candidate[is_proven], positions, vectors)
            self._search(some[~is_proven], _GROWTH * wanted, errors, positions, vectors)

    def _merge(
        self,
        queries: Int64[ndarray, " some"],
        rows: Int64[ndarray, "some wanted"],
        is_candidate: Bool[ndarray, "some wanted"],
        positions: Int64[ndarray, " rows"],
        vectors: Float32[ndarray, "rows width"],
    ) -> None:
        """Score candidates exactly, and merge them into the rankings."""
        is_candidate = is_candidate & (positions[rows] != self._excluded[queries, None])
        of, column = np.nonzero(is_candidate)
        to = rows[of, column]
        keys = np.full(rows.shape, NONE)
        keys[of, column] = keys_of(
            pair_scores(self._queries, vectors, queries[of], to), self._order.ranks[positions[to]]
        )
        self._best[queries] = merge_keys([self._best[queries], keys], self._best.shape[1])


def _norms(vectors: Float32[ndarray, "rows width"], name: str, positions: Int64[ndarray, " rows"]) -> ndarray:
    """Return upper bounds of the norms in float64, infinite where float32 might overflow.

    They cover what sums of squares in float32 lose: less than 1 %, and numbers below 2^-63.

    Raises:
        ModelError: a vector is not finite.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors), dtype=np.float64) * 1.01 + 2.0**-50
    if not np.isfinite(norms).all():
        check_finite(vectors, name, positions)
    return np.where(norms > LARGEST_NORM, np.inf, norms)
