"""Approximate nearest-neighbor (ANN) search: an ANN index proposes documents, which are then scored exactly.

An ANN index (`ivf`, `hnsw`, `vamana`, `roargraph`) proposes the rows that are likely the best. It also counts its
candidates, the rows that it scored to choose them. `pair_scores` scores the proposed rows, which are then ordered like
every ranking. So an approximate index may miss documents, but those that it finds are in the right order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.core.errors import ModelError, StorageError
from raytriever.retrieval.index.exact_top_k import check_count
from raytriever.retrieval.index.pair_scores import check_finite, pair_scores, refuse_forked
from raytriever.retrieval.index.rank_keys import NONE, TieOrder, keys_of, merge_keys

_SEARCH_GROWTH = 4


class Proposal(NamedTuple):
    """Rows that an ANN index proposes: k or more distinct rows for each query, with -1 in unused columns. `candidates`
    is the mean number of rows that the index scored for a query; NaN if the library does not report this number."""

    rows: Int64[ndarray, "queries proposed"]
    candidates: float


class AnnIndex(Protocol):
    """Approximate searcher of the embeddings from which it was built."""

    def find(self, queries: Float32[ndarray, "queries dim"], k: int, search_size: int, threads: int) -> Proposal:
        """Propose rows that are likely to have the highest dot products.

        Args:
            queries: embeddings, normalized if those of the documents are.
            k: number of rows, at least 1 and at most the number of all rows.
            search_size: number of probed lists, or beam width of a graph search, at least 1. A larger search size finds
                more of the best rows.
            threads: number of threads, which does not change the result.
        """

    def save(self, folder: Path) -> None:
        """Write all parts of the index except the embeddings into an empty folder."""


@dataclass(frozen=True)
class ApproximateIndex:
    """Index that may miss documents. It is exact if k is at least half of the corpus."""

    ann_index: AnnIndex  # ANN index that was built from `embeddings`
    embeddings: Float32[ndarray, "documents dim"]  # finite embeddings of all documents, in memory or memory-mapped
    ties: Int64[ndarray, " documents"]  # result of `index.exact_top_k.tie_order`
    search_size: int  # see `AnnIndex.find`

    def search(
        self, queries: Float32[ndarray, "queries dim"], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return scores and documents, best first; -inf and -1 only if the corpus has fewer than k documents.

        Raise `ModelError` if the queries have another dimension or are not finite, and `ConfigError` if k is below
        1."""
        refuse_forked()
        queries = self.check(queries, k)
        rows = self.propose(queries, k, torch.get_num_threads()).rows
        query_rows = np.repeat(np.arange(len(queries)), rows.shape[1])
        scores = pair_scores(queries, self.embeddings, query_rows, np.maximum(rows, 0).ravel()).reshape(rows.shape)
        ranks = self._order.ranks[rows].astype(np.int64)
        keys = keys_of(torch.from_numpy(scores), torch.from_numpy(ranks)).numpy()
        keys[rows < 0] = NONE
        return self._order.read(merge_keys([keys], min(k, len(self.ties))))

    def propose(self, queries: Float32[ndarray, "queries dim"], k: int, threads: int) -> Proposal:
        """Return the rows to score exactly for each query; all rows if k is at least half of them.

        To find half of the documents, a search would visit almost all of them, and it never finds those that it cannot
        reach. So for such k, which may exceed the size of the corpus, the search is exact.

        `queries` must be the result of `check`."""
        count = len(self.embeddings)
        if 2 * k >= count:
            rows = np.broadcast_to(np.arange(count), (len(queries), count))
            return Proposal(rows, float(count))
        search_size = self.search_size
        rows, candidates = self.ann_index.find(queries, k, search_size, threads)
        # The probed lists or the beam may hold fewer than k documents. Then search again with a larger search size.
        while search_size < count and len(short := np.flatnonzero(np.count_nonzero(rows >= 0, axis=1) < k)):
            search_size *= _SEARCH_GROWTH
            more, further = self.ann_index.find(np.ascontiguousarray(queries[short]), k, search_size, threads)
            rows = np.pad(rows, ((0, 0), (0, max(0, more.shape[1] - rows.shape[1]))), constant_values=-1)
            rows[short] = -1
            rows[short, : more.shape[1]] = more
            candidates += further * len(short) / len(queries)
        return Proposal(rows, candidates)

    @cached_property
    def _order(self) -> TieOrder:
        return TieOrder.of(self.ties)

    def check(self, queries: Float32[ndarray, "queries dim"], k: int) -> Float32[ndarray, "queries dim"]:
        """Check the arguments of `search` and return contiguous queries. Raises the errors of `search`."""
        check_count(k)
        if queries.ndim != 2 or queries.shape[1] != self.embeddings.shape[1]:
            dim = self.embeddings.shape[1]
            what = f"the index has embeddings of dimension {dim}, but the queries have the shape {queries.shape}"
            raise ModelError(what, remedy="encode both with the same model")
        check_finite(queries, "query")
        return np.ascontiguousarray(queries, np.float32)


def check_shape(stored: tuple[int, int], shape: tuple[int, ...], where: Path) -> None:
    """Raise `StorageError` if the files of an ANN index have another number of rows, or another dimension, than the
    embeddings."""
    if stored != shape:
        what = f"holds {stored[0]:,} vectors of dimension {stored[1]}, not {shape[0]:,} of dimension {shape[1]}"
        raise StorageError(what, str(where), "build the index again")


def recall(retrieved: Int64[ndarray, "queries k"], true: Int64[ndarray, "queries k"]) -> Float64[ndarray, " queries"]:
    """Return the fraction of each query's true documents that were retrieved. Entries of -1 are ignored."""
    hits = ((retrieved[:, :, None] == true[:, None, :]) & (true[:, None, :] >= 0)).any(1)
    return hits.sum(1) / np.maximum((true >= 0).sum(1), 1)
