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
    """Document embeddings in an array; see `DocumentEmbeddings`. Every document has one."""

    array: Float32[ndarray, "documents width"]

    def __len__(self) -> int:
        return len(self.array)

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """An empty array."""
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


@dataclass(frozen=True)
class PairScorer:
    """Scorer of query-document pairs.

    Args:
        name: `encoder`, `bm25`, `judge` or empty, if there are no scores; stored in the table's manifest.
        score: returns the score of every document `[block, any]` for the query of its row `[block]`; NaN for a
            document of -1, and for one without an embedding.
    """

    name: str
    score: Callable[[Int64[ndarray, " block"], Int64[ndarray, "block any"]], Float32[ndarray, "block any"]]

    @classmethod
    def by_encoder(cls, embeddings: Embeddings) -> PairScorer:
        """Score by dot products, equal to the scores of a search."""

        def score(queries: ndarray, documents: ndarray) -> ndarray:
            wanted, indices = np.unique(documents, return_inverse=True)
            return pair_scores(embeddings.queries, embeddings.documents.read(wanted), queries, indices)

        step = max(1, _GATHERED // embeddings.queries.shape[1])
        left_out = embeddings.documents.left_out
        return cls("encoder", _of_pairs(score, step, left_out, "model", "use a model with valid weights"))

    @classmethod
    def by_bm25(cls, index: Bm25Index, texts: Sequence[str]) -> PairScorer:
        """Score by BM25; `texts` are the split's queries."""
        return cls("bm25", lambda rows, documents: index.scores_of([texts[row] for row in rows], documents))

    @classmethod
    def by_judge(cls, judge: Judge, texts: Sequence[str], passages: Sequence[str]) -> PairScorer:
        """Score by a judge; `texts` are the split's queries, `passages` all documents."""

        def score(queries: ndarray, documents: ndarray) -> ndarray:
            return judge([texts[query] for query in queries], [passages[document] for document in documents.tolist()])

        remedy = "use a cross-encoder with valid weights"
        return cls("judge", _of_pairs(score, _JUDGED, np.empty(0, np.int64), "judge", remedy))


def _of_pairs(
    score: Callable[[ndarray, ndarray], ndarray], step: int, left_out: ndarray, name: str, remedy: str
) -> Callable[[ndarray, ndarray], ndarray]:
    """Return the function of a `PairScorer` from one that scores at most `step` pairs; a score that is not finite
    raises `ModelError`."""

    def score_all(rows: ndarray, documents: ndarray) -> ndarray:
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        row, column = np.nonzero((documents >= 0) & ~np.isin(documents, left_out))
        for start in range(0, len(row), step):
            cells = row[start : start + step], column[start : start + step]
            scores[cells] = score(rows[cells[0]], documents[cells])
        if not np.isfinite(scores[row, column]).all():
            raise ModelError("a score is not finite", setting(name), remedy)
        return scores

    return score_all
