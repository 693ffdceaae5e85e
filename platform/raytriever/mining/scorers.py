"""Scorers of query-document pairs. One scorer is used for a whole table, so thresholds do not depend on the finder.

The scorer is the judge if there is one, else the encoder if a method needs it anyway, else BM25."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.errors import ModelError, setting
from raytriever.index.score import pair_scores
from raytriever.mining.bm25 import Bm25Index

# A judge scores pairs of texts; higher scores are more relevant.
Judge = Callable[[Sequence[str], Sequence[str]], Float32[ndarray, " pairs"]]
# Components of embeddings that are gathered for scoring at a time.
_GATHERED = 1 << 25
# Pairs of texts in one call of a judge.
_JUDGED = 4_096


class DocumentEmbeddings(Protocol):
    """Embeddings of all documents by position, in memory or in files."""

    def __len__(self) -> int: ...

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """Documents without an embedding, because they kill the encoder's process."""
        ...

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
        """Yield the embeddings in order, each block with its first position."""
        ...

    def read(self, rows: Int64[ndarray, " rows"]) -> Float32[ndarray, "rows width"]:
        """Return the embeddings of some documents."""
        ...


@dataclass(frozen=True)
class ArrayEmbeddings:
    """Document embeddings in an array, in memory or memory-mapped."""

    array: Float32[ndarray, "documents width"]

    def __len__(self) -> int:
        return len(self.array)

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """An empty array: every document has an embedding."""
        return np.empty(0, dtype=np.int64)

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
        """Yield all embeddings as one block."""
        yield 0, self.array

    def read(self, rows: Int64[ndarray, " rows"]) -> Float32[ndarray, "rows width"]:
        """Return the embeddings of some documents."""
        return self.array[rows]


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of a split's queries, in the order of `dataset.positives(split)`, and of all documents."""

    queries: Float32[ndarray, "split_queries width"]
    documents: DocumentEmbeddings

    @classmethod
    def of(cls, queries: ndarray, documents: ndarray) -> Embeddings:
        """Create embeddings from two arrays."""
        return cls(queries, ArrayEmbeddings(documents))


class PairScorer(Protocol):
    """Scorer of query-document pairs; its name is stored in the table's manifest."""

    @property
    def name(self) -> str:
        """Name of the scorer: `encoder`, `bm25`, `judge` or empty."""
        ...

    def score(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """Return the score of every document for the query of its row; NaN for a document of -1."""
        ...


@dataclass(frozen=True)
class EncoderScorer:
    """Scorer by dot product, equal to the scores of a search; NaN for a document without an embedding."""

    embeddings: Embeddings
    name: str = "encoder"

    def score(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """Score pairs; see `PairScorer`."""
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        row, column = np.nonzero((documents >= 0) & ~np.isin(documents, self.embeddings.documents.left_out))
        step = max(1, _GATHERED // self.embeddings.queries.shape[1])
        for start in range(0, len(row), step):
            cells = row[start : start + step], column[start : start + step]
            wanted, indices = np.unique(documents[cells], return_inverse=True)
            passages = self.embeddings.documents.read(wanted)
            scores[cells] = pair_scores(self.embeddings.queries, passages, rows[cells[0]], indices)
        if not np.isfinite(scores[row, column]).all():
            raise ModelError("a score is not finite", setting("model"), "use a model with valid weights")
        return scores


@dataclass(frozen=True)
class Bm25Scorer:
    """Scorer by BM25; `texts` are the split's queries."""

    index: Bm25Index
    texts: Sequence[str]
    name: str = "bm25"

    def score(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """Score pairs; see `PairScorer`."""
        return self.index.scores_of([self.texts[row] for row in rows], documents)


@dataclass(frozen=True)
class JudgeScorer:
    """Scorer by a judge; `texts` are the split's queries, `passages` all documents."""

    judge: Judge
    texts: Sequence[str]
    passages: Sequence[str]
    name: str = "judge"

    def score(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """Score pairs; raises `ModelError` if a score is not finite."""
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        row, column = np.nonzero(documents >= 0)
        for start in range(0, len(row), _JUDGED):
            cells = row[start : start + _JUDGED], column[start : start + _JUDGED]
            queries = [self.texts[query] for query in rows[cells[0]]]
            passages = [self.passages[int(document)] for document in documents[cells]]
            scores[cells] = self.judge(queries, passages)
        if not np.isfinite(scores[row, column]).all():
            raise ModelError("a score is not finite", setting("judge"), "use a cross-encoder with valid weights")
        return scores


@dataclass(frozen=True)
class NullScorer:
    """Scorer for tables without scores."""

    name: str = ""

    def score(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """Return NaN for every pair."""
        return np.full(documents.shape, np.nan, dtype=np.float32)
