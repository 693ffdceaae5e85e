"""Scorers of candidates: one scale for a whole table, so that thresholds mean the same whichever finder found a
candidate.

The scale is a judge's if there is one, else the encoder's if a method needs it anyway, else BM25's. It scores any
pair of a query and a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.errors import ModelError
from raytriever.index.score import pair_scores
from raytriever.mining.bm25 import Bm25Index

# A judge reads pairs of texts; higher is more relevant.
Judge = Callable[[Sequence[str], Sequence[str]], Float32[ndarray, " pairs"]]
# Embeddings gathered for scoring at a time.
_GATHERED = 1 << 25
# Pairs of texts that a judge is given at a time.
_READ = 4_096


class DocumentEmbeddings(Protocol):
    """The embeddings of all documents, by position, wherever they are kept."""

    def __len__(self) -> int: ...

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """Documents that have no embedding, because they kill the encoder's process."""
        ...

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
        """The embeddings in order, each part with its first position."""
        ...

    def read(self, rows: Int64[ndarray, " rows"]) -> Float32[ndarray, "rows width"]:
        """The embeddings of some documents."""
        ...


@dataclass(frozen=True)
class ArrayEmbeddings:
    """Embeddings that are an array already, in memory or mapped."""

    array: Float32[ndarray, "documents width"]

    def __len__(self) -> int:
        return len(self.array)

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """None."""
        return np.empty(0, dtype=np.int64)

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
        """One part."""
        yield 0, self.array

    def read(self, rows: Int64[ndarray, " rows"]) -> Float32[ndarray, "rows width"]:
        """The embeddings of some documents."""
        return self.array[rows]


@dataclass(frozen=True)
class Embeddings:
    """What an encoder made of a split's queries, in the order of `dataset.positives(split)`, and of all documents."""

    queries: Float32[ndarray, "split_queries width"]
    documents: DocumentEmbeddings

    @classmethod
    def of(cls, queries: ndarray, documents: ndarray) -> Embeddings:
        """From arrays."""
        return cls(queries, ArrayEmbeddings(documents))


class PairScorer(Protocol):
    """Scores pairs; `name` is told in the table's manifest."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def pairs(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """The score of every document for the query of its row, NaN where a document is -1."""
        ...


@dataclass(frozen=True)
class EncoderScorer:
    """Dot products, those that a search finds; NaN for a document that has no embedding."""

    embeddings: Embeddings
    name: str = "encoder"

    def pairs(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """See `PairScorer`."""
        found = np.full(documents.shape, np.nan, dtype=np.float32)
        of, place = np.nonzero((documents >= 0) & ~np.isin(documents, self.embeddings.documents.left_out))
        step = max(1, _GATHERED // self.embeddings.queries.shape[1])
        for start in range(0, len(of), step):
            part = slice(start, start + step)
            wanted, where = np.unique(documents[of[part], place[part]], return_inverse=True)
            passages = self.embeddings.documents.read(wanted)
            found[of[part], place[part]] = pair_scores(self.embeddings.queries, passages, rows[of[part]], where)
        if not np.isfinite(found[of, place]).all():
            raise ModelError("a score is not finite", "--model", "the weights are broken or overflow")
        return found


@dataclass(frozen=True)
class Bm25Scorer:
    """BM25's scores; `texts` are the split's queries."""

    index: Bm25Index
    texts: Sequence[str]
    name: str = "bm25"

    def pairs(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """See `PairScorer`."""
        return self.index.scores_of([self.texts[row] for row in rows], documents)


@dataclass(frozen=True)
class JudgeScorer:
    """A judge's scores; `texts` are the split's queries, `passages` all documents."""

    judge: Judge
    texts: Sequence[str]
    passages: Sequence[str]
    name: str = "judge"

    def pairs(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """See `PairScorer`; raises `ModelError` where a score is not finite."""
        found = np.full(documents.shape, np.nan, dtype=np.float32)
        of, place = np.nonzero(documents >= 0)
        for start in range(0, len(of), _READ):
            part = slice(start, start + _READ)
            queries = [self.texts[row] for row in rows[of[part]]]
            passages = [self.passages[int(each)] for each in documents[of[part], place[part]]]
            found[of[part], place[part]] = self.judge(queries, passages)
        if not np.isfinite(found[of, place]).all():
            raise ModelError("a score is not finite", "--judge", "its weights are broken or overflow")
        return found


@dataclass(frozen=True)
class NullScorer:
    """Nobody scores anything."""

    name: str = ""

    def pairs(
        self, rows: Int64[ndarray, " block"], documents: Int64[ndarray, "block any"]
    ) -> Float32[ndarray, "block any"]:
        """NaN throughout."""
        return np.full(documents.shape, np.nan, dtype=np.float32)
