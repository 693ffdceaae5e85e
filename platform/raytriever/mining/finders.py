"""Finders of candidates: for a block of a split's queries, documents in an order, best first.

Every finder searches so deep that the requested ranks exist after the known non-negatives are removed; so the result
of a query depends on nothing but the query."""

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

# What a draw is for; see `data.draws.words`.
DOCUMENTS, CHOICE = 11, 12

Found = tuple[Int64[ndarray, "block places"], Float32[ndarray, "block places"]]


class CandidateFinder(Protocol):
    """Finds documents for queries, given by their places in the split.

    `scale` names the scale that its scores are of; it is empty where they are of none.
    """

    @property
    def scale(self) -> str:
        """See above."""
        ...

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Found:
        """Documents, best first, and the finder's scores; -1 and NaN where there are fewer.

        Args:
            rows: queries.
            depth: how many documents that are not known each query wants, at least, where there are as many.
        """
        ...


@dataclass(frozen=True)
class Bm25Finder:
    """Documents that share a term with the query, by BM25."""

    index: Bm25Index
    texts: Sequence[str]
    known: ExcludedDocuments
    scale: str = "bm25"

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Found:
        """See `CandidateFinder`."""
        k = depth + int(self.known.counts[rows].max(initial=0))
        scores, documents = self.index.search([self.texts[row] for row in rows], k)
        documents[scores <= 0] = -1
        return documents, scores


@dataclass(frozen=True)
class DenseFinder:
    """Documents by dot product."""

    embeddings: Embeddings
    ties: Int64[ndarray, " documents"]
    known: ExcludedDocuments
    scale: str = "encoder"

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Found:
        """See `CandidateFinder`."""
        k = depth + int(self.known.counts[rows].max(initial=0))
        scores, documents = top_k_of_blocks(
            self.embeddings.queries[rows], self.embeddings.documents.blocks(), k, self.ties
        )
        return documents, scores


@dataclass(frozen=True)
class CrossQueryFinder:
    """Positives of similar queries: a document stands where the most similar query it is a positive of stands.

    `ties` are of the split's queries.
    """

    queries: Float32[ndarray, "split_queries width"]
    positives: Positives
    ties: Int64[ndarray, " split_queries"]
    known: ExcludedDocuments
    scale: str = ""

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Found:
        """See `CandidateFinder`; its scores are those of the similar queries."""
        wanted = depth + int(self.known.counts[rows].max(initial=0))
        k = 2 * wanted
        while True:
            scores, similar = top_k(self.queries[rows], self.queries, k, self.ties)
            found = self._documents_of(similar, scores)
            # So far that every query has its documents; those of many queries are met again and again.
            if k >= len(self.queries) or (found[0].shape[1] >= wanted and (found[0][:, wanted - 1] >= 0).all()):
                return found
            k *= 2

    def _documents_of(self, similar: ndarray, scores: ndarray) -> Found:
        counts = np.diff(self.positives.offsets)[similar]
        row, column = (np.repeat(place.ravel(), counts.ravel()) for place in np.indices(similar.shape))
        starts = np.repeat(self.positives.offsets[similar].ravel(), counts.ravel())
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts.ravel()) - counts.ravel(), counts.ravel())
        documents = self.positives.documents[starts + within]
        return _laid_out(row, documents, scores[row, column], len(similar))


@dataclass(frozen=True)
class GoldFinder:
    """Hard negatives that the data set brings along as `gold`: pairs judged and found irrelevant, foremost."""

    queries: Int64[ndarray, " split_queries"]
    negatives: NegativeRows
    scale: str = ""

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Found:
        """See `CandidateFinder`; all of them, whatever `depth` is."""
        place = np.full(int(max(self.queries.max(initial=0), self.negatives.queries.max(initial=0))) + 1, -1)
        place[self.queries[rows]] = np.arange(len(rows))
        row = np.where(self.negatives.origins == ORIGINS.index("gold"), place[self.negatives.queries], -1)
        order = np.lexsort((self.negatives.ranks, row))
        order = order[row[order] >= 0]
        return _laid_out(row[order], self.negatives.documents[order], self.negatives.scores[order], len(rows))


@dataclass(frozen=True)
class RandomFinder:
    """Documents drawn for each query by (seed, round, the query's key), in the order in which they were drawn."""

    size: int
    keys: UInt64[ndarray, " split_queries"]
    seed: int
    round: int
    known: ExcludedDocuments
    scale: str = ""

    def __call__(self, rows: Int64[ndarray, " block"], depth: int) -> Found:
        """See `CandidateFinder`."""
        # Drawn with repetition, which in a small corpus would not end: there every document gets a word.
        whole = 8 * depth >= self.size
        columns = np.arange(self.size if whole else 2 * (depth + int(self.known.counts[rows].max(initial=0))))
        drawn = words(self.seed, np.full(len(rows), self.round), self.keys[rows], DOCUMENTS, columns)
        if whole:
            documents = np.argsort(drawn, axis=1, kind="stable")
        else:
            documents = (drawn % np.uint64(self.size)).astype(np.int64)
        row = np.repeat(np.arange(len(rows)), documents.shape[1])
        return _laid_out(row, documents.ravel(), np.full(len(row), np.nan, np.float32), len(rows))


def _laid_out(row: ndarray, documents: ndarray, scores: ndarray, rows: int) -> Found:
    """Pairs in an order as a table of a row a query, each document where it stood first."""
    pairs = row * (int(documents.max(initial=0)) + 1) + documents
    first = np.sort(np.unique(pairs, return_index=True)[1])
    row, documents, scores = row[first], documents[first], scores[first]
    counts = np.bincount(row, minlength=rows)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = np.full((rows, int(counts.max(initial=0))), -1, dtype=np.int64)
    of = np.full(found.shape, np.nan, dtype=np.float32)
    found[row, place], of[row, place] = documents, scores
    return found, of
