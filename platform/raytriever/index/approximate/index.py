"""Approximate search behind the protocol of every index: a finder proposes documents, their scores are exact.

A finder (`ivf`, `hnsw`, `vamana`, `roargraph`) knows embeddings by row and tells rows that are likely best, and how
many it scored for that, its candidates. What it proposes is scored by `score.pair_scores` and ordered as any ranking
is, so an approximate index may miss documents but never misorders those it finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.errors import ConfigError, ModelError
from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, TieOrder, keys_of, merge_keys
from raytriever.index.score import pair_scores, refuse_not_finite


class Proposal(NamedTuple):
    """Proposed rows, k or more for each query, each row once, -1 where fewer were found; and the mean number of
    candidates that were scored for a query, NaN where the library does not give it."""

    rows: Int64[ndarray, "queries proposed"]
    candidates: float


class Finder(Protocol):
    """Proposes rows of the embeddings it was built over."""

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Proposal:
        """Rows likely to have the highest dot products.

        Args:
            queries: normalised or not, as the documents are.
            k: how many, at least 1 and at most the number of rows.
            effort: at least 1; lists probed by an inverted file, documents a graph's beam holds. More finds more.
            threads: how many compute; changes no answer.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write everything but the embeddings into an empty folder."""
        ...

    @property
    def bytes(self) -> int:
        """Memory beside the embeddings, as far as it is known: lists, graphs and copies of the embeddings."""
        ...


@dataclass(frozen=True)
class ApproximateIndex:
    """An `index.Index` that may miss documents where k is less than half of them.

    Args:
        finder: built over `embeddings`.
        embeddings: finite, in memory or mapped from a file.
        documents: the document of each row, in the corpus that `ties` orders.
        ties: from `exact.tie_order`, for the whole corpus.
        effort: see `Finder.find`.
    """

    finder: Finder
    embeddings: Float32[ndarray, "rows width"]
    documents: Int64[ndarray, " rows"]
    ties: Int64[ndarray, " documents"]
    effort: int

    def search(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """See `index.Index`.

        Raises:
            ModelError: the queries are of another width, or not finite.
            ConfigError: k is below 1.
        """
        refuse_forked()
        queries = self.check(queries, k)
        rows = self.propose(queries, k + (exclude is not None), torch.get_num_threads()).rows
        of = np.repeat(np.arange(len(queries)), rows.shape[1])
        scores = pair_scores(queries, self.embeddings, of, np.maximum(rows, 0).ravel()).reshape(rows.shape)
        found = np.where(rows < 0, -1, self.documents[rows])
        keys = keys_of(scores, self._order.ranks[found])
        keys[(found < 0) | (found == (-1 if exclude is None else exclude[:, None]))] = NONE
        return self._order.read(merge_keys([keys], min(k, len(self.ties))))

    def propose(self, queries: Float32[ndarray, "queries width"], k: int, threads: int) -> Proposal:
        """The rows that are scored exactly for each query; every row where k is half of them or more.

        To find half of the documents a finder visits almost all of them, and what it cannot reach is lost. So an
        index answers exactly there, up to and beyond the corpus' size.

        Args:
            queries: from `check`.
            k: how many documents are wanted, at least 1.
            threads: see `Finder.find`.
        """
        count = len(self.documents)
        if 2 * k >= count:
            rows = np.broadcast_to(np.arange(count), (len(queries), count))
            return Proposal(rows, float(count))
        return self.finder.find(queries, k, self.effort, threads)

    @cached_property
    def _order(self) -> TieOrder:
        return TieOrder.of(self.ties)

    def check(self, queries: Float32[ndarray, "queries width"], k: int) -> Float32[ndarray, "queries width"]:
        """The queries as a finder takes them; raises as `search`."""
        if k < 1:
            raise ConfigError(f"k = {k} is out of range", remedy="ask for at least 1 document")
        if queries.ndim != 2 or queries.shape[1] != self.embeddings.shape[1]:
            raise ModelError(
                f"the index holds embeddings of width {self.embeddings.shape[1]}, the queries are {queries.shape}",
                remedy="encode both with the same model",
            )
        refuse_not_finite(np.isfinite(queries).all(axis=1), "query", np.arange(len(queries)))
        return np.ascontiguousarray(queries, np.float32)


def recall(found: Int64[ndarray, "queries k"], true: Int64[ndarray, "queries k"]) -> Float64[ndarray, " queries"]:
    """The share of each query's true documents that were found; -1 stands for none in either."""
    hits = ((found[:, :, None] == true[:, None, :]) & (true[:, None, :] >= 0)).any(1)
    return hits.sum(1) / np.maximum((true >= 0).sum(1), 1)
