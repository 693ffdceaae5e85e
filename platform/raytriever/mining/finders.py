"""Finders of candidates: they rank documents for a block of a split's queries, best first.

Every finder searches so deep that the requested ranks exist after the excluded documents are removed. So the result
of a query depends only on the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.data.dataset import NegativeRows, Positives
from raytriever.data.records import ORIGINS
from raytriever.data.sampling.draws import words
from raytriever.index.exact.search import top_k, top_k_of_blocks
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.filters import ExcludedDocuments
from raytriever.mining.scorers import Embeddings

# Purposes of draws; see `data.sampling.draws.words`.
DOCUMENTS, CHOICE = 11, 12

Candidates = tuple[Int64[ndarray, "block columns"], Float32[ndarray, "block columns"]]


class CandidateFinder(Protocol):
    """Finder of candidates for queries, which are identified by their indices in the split."""

    @property
    def scorer(self) -> str:
        """Name of the `PairScorer` that gives the same scores; empty if there is none."""
        ...

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Return documents, best first, and the finder's scores; -1 and NaN in unused columns.

        Args:
            rows: queries.
            depth: least number of documents per query that are not excluded, if there are as many.
        """
        ...


@dataclass(frozen=True)
class Bm25Finder:
    """Finder by BM25: documents that share a term with the query."""

    index: Bm25Index
    texts: Sequence[str]
    excluded: ExcludedDocuments
    scorer: str = "bm25"

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Find candidates; see `CandidateFinder`."""
        k = depth + int(self.excluded.counts[rows].max(initial=0))
        scores, documents = self.index.search([self.texts[row] for row in rows], k)
        documents[scores <= 0] = -1
        return documents, scores


@dataclass(frozen=True)
class DenseFinder:
    """Finder by dot product of embeddings."""

    embeddings: Embeddings
    ties: Int64[ndarray, " documents"]
    excluded: ExcludedDocuments
    scorer: str = "encoder"

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Find candidates; see `CandidateFinder`."""
        k = depth + int(self.excluded.counts[rows].max(initial=0))
        scores, documents = top_k_of_blocks(
            self.embeddings.queries[rows], self.embeddings.documents.blocks(), k, self.ties
        )
        return documents, scores


@dataclass(frozen=True)
class CrossQueryFinder:
    """Finder of positives of similar queries. A document has the rank of the most similar query it is a positive of.

    `ties` is the tie order of the split's queries.
    """

    queries: Float32[ndarray, "split_queries width"]
    positives: Positives
    ties: Int64[ndarray, " split_queries"]
    excluded: ExcludedDocuments
    scorer: str = ""

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Find candidates; see `CandidateFinder`. The scores are those of the similar queries."""
        wanted = depth + int(self.excluded.counts[rows].max(initial=0))
        k = 2 * wanted
        while True:
            scores, similar = top_k(self.queries[rows], self.queries, k, self.ties)
            documents, scores = self._documents_of(similar, scores)
            # Documents repeat if they are positives of many queries, so search on until every query has enough.
            if k >= len(self.queries) or (documents.shape[1] >= wanted and (documents[:, wanted - 1] >= 0).all()):
                return documents, scores
            k *= 2

    def _documents_of(self, similar: ndarray, scores: ndarray) -> Candidates:
        counts = np.diff(self.positives.offsets)[similar]
        row, column = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(similar.shape))
        starts = np.repeat(self.positives.offsets[similar].ravel(), counts.ravel())
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts.ravel()) - counts.ravel(), counts.ravel())
        documents = self.positives.documents[starts + within]
        return _tabulate(row, documents, scores[row, column], len(similar))


@dataclass(frozen=True)
class GoldFinder:
    """Finder of the hard negatives that the data set contains as `gold`, such as pairs judged as irrelevant."""

    queries: Int64[ndarray, " split_queries"]
    negatives: NegativeRows
    scorer: str = ""

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Return all gold negatives of the queries; `depth` has no effect."""
        block_row = np.full(int(max(self.queries.max(initial=0), self.negatives.queries.max(initial=0))) + 1, -1)
        block_row[self.queries[rows]] = np.arange(len(rows))
        row = np.where(self.negatives.origins == ORIGINS.index("gold"), block_row[self.negatives.queries], -1)
        order = np.lexsort((self.negatives.ranks, row))
        order = order[row[order] >= 0]
        return _tabulate(row[order], self.negatives.documents[order], self.negatives.scores[order], len(rows))


@dataclass(frozen=True)
class RandomFinder:
    """Finder of random documents, drawn by (seed, round, the query's key), in the order of the draws."""

    size: int
    keys: UInt64[ndarray, " split_queries"]
    seed: int
    round: int
    excluded: ExcludedDocuments
    scorer: str = ""

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Candidates:
        """Find candidates; see `CandidateFinder`."""
        # Draws with repetition might not end in a small corpus; there every document gets a random word.
        whole = 8 * depth >= self.size
        columns = np.arange(self.size if whole else 2 * (depth + int(self.excluded.counts[rows].max(initial=0))))
        drawn = words(self.seed, np.full(len(rows), self.round), self.keys[rows], DOCUMENTS, columns)
        if whole:
            documents = np.argsort(drawn, axis=1, kind="stable")
        else:
            documents = (drawn % np.uint64(self.size)).astype(np.int64)
        row = np.repeat(np.arange(len(rows)), documents.shape[1])
        return _tabulate(row, documents.ravel(), np.full(len(row), np.nan, np.float32), len(rows))


def _tabulate(row: ndarray, documents: ndarray, scores: ndarray, rows: int) -> Candidates:
    """Turn ordered pairs into a table with one row per query; a repeated document keeps its first column."""
    pairs = row * (int(documents.max(initial=0)) + 1) + documents
    first = np.sort(np.unique(pairs, return_index=True)[1])
    row, documents, scores = row[first], documents[first], scores[first]
    counts = np.bincount(row, minlength=rows)
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    document_table = np.full((rows, int(counts.max(initial=0))), -1, dtype=np.int64)
    score_table = np.full(document_table.shape, np.nan, dtype=np.float32)
    document_table[row, column], score_table[row, column] = documents, scores
    return document_table, score_table
