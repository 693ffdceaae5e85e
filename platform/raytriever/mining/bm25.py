"""BM25 over passages: baseline of the evaluation tables and first source of hard negatives.

bm25s computes the term weights when the index is built (Lu 2024, arXiv:2407.03618; Robertson & Zaragoza 2009);
`analyser` defines the terms. The ranking is compiled: one pass over the postings of a query's terms, then a heap.
Scores equal those of bm25s to the last bit. Ties are broken by position. A query's ranking depends neither on the
other queries nor on the number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.mining.analyser import analyse

K1, B = 0.9, 0.4
# Queries of one task: enough to keep a thread busy, few enough to share out.
_CHUNK = 256


@numba.njit(cache=True, nogil=True)
def add_scores(weights, documents, starts, terms, scores):  # type: ignore[no-untyped-def]
    """Add a query's score of every document to `scores`.

    Args:
        weights, documents: the postings of term t are at the indices `starts[t]` to `starts[t + 1]`.
        terms: terms of the query; a repeated term counts each time.
        scores: `[documents]` float32, initially 0.
    """
    for term in terms:
        for posting in range(starts[term], starts[term + 1]):
            scores[documents[posting]] += weights[posting]


@numba.njit(cache=True, nogil=True)
def rank(weights, documents, starts, terms, offsets, size, best, positions):  # type: ignore[no-untyped-def]
    """Fill `best` and `positions`, `[queries, k]`, with the k best of `size` documents, by score, then position.

    The terms of query q are `terms[offsets[q]:offsets[q + 1]]`; k is at most `size`.
    """
    scores = np.zeros(size, np.float32)
    for query in range(len(offsets) - 1):
        scores[:] = 0
        add_scores(weights, documents, starts, terms[offsets[query] : offsets[query + 1]], scores)
        _select_top(scores, best[query], positions[query])


@numba.njit(cache=True, nogil=True)
def gather(weights, documents, starts, terms, offsets, size, wanted, gathered):  # type: ignore[no-untyped-def]
    """Fill `gathered` with the scores of the documents `wanted`, `[queries, any]`; skip entries of -1."""
    scores = np.zeros(size, np.float32)
    for query in range(len(offsets) - 1):
        scores[:] = 0
        add_scores(weights, documents, starts, terms[offsets[query] : offsets[query + 1]], scores)
        for column in range(wanted.shape[1]):
            if wanted[query, column] >= 0:
                gathered[query, column] = scores[wanted[query, column]]


@numba.njit(cache=True, nogil=True)
def _select_top(scores, best, positions):  # type: ignore[no-untyped-def]
    """Fill `best` with the head of a stable sort by descending score.

    A heap holds the worst entry on top; it is emptied from the back.
    """
    size, k = 0, len(best)
    for position in range(len(scores)):
        score = scores[position]
        if size < k:
            best[size], positions[size] = score, position
            child = size
            size += 1
            while child > 0 and _is_worse(best, positions, child, (child - 1) // 2):
                _swap(best, positions, child, (child - 1) // 2)
                child = (child - 1) // 2
        elif k > 0 and score > best[0]:
            best[0], positions[0] = score, position
            _sink(best, positions, size)
    while size > 1:
        size -= 1
        _swap(best, positions, 0, size)
        _sink(best, positions, size)


@numba.njit(cache=True, nogil=True)
def _sink(best, positions, size):  # type: ignore[no-untyped-def]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        if child + 1 < size and _is_worse(best, positions, child + 1, child):
            child += 1
        if not _is_worse(best, positions, child, parent):
            return
        _swap(best, positions, child, parent)
        parent = child


@numba.njit(cache=True, nogil=True)
def _is_worse(best, positions, one, other):  # type: ignore[no-untyped-def]
    """Return true if heap entry `one` has a lower score than `other`, or an equal score and a later position."""
    return best[one] < best[other] or (best[one] == best[other] and positions[one] > positions[other])


@numba.njit(cache=True, nogil=True)
def _swap(best, positions, one, other):  # type: ignore[no-untyped-def]
    best[one], best[other] = best[other], best[one]
    positions[one], positions[other] = positions[other], positions[one]


class Bm25Index:
    """BM25 index of texts.

    Args:
        texts: the passages, at least one; results identify them by their positions in this sequence.
    """

    @activity("indexing the documents for BM25")
    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s

        self._size = len(texts)
        tokens = analyse(texts, ids=True)
        self._vocabulary: dict[str, int] = tokens.vocab
        self._postings = (np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64))
        # bm25s cannot index texts without any term; nothing can match them either.
        if any(tokens.ids):
            index = bm25s.BM25(k1=K1, b=B)
            index.index(tokens, show_progress=False)
            self._postings = tuple(index.scores[name] for name in ("data", "indices", "indptr"))
        else:
            self._vocabulary = {}

    def __len__(self) -> int:
        return self._size

    def search(
        self, queries: Sequence[str], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return the `min(k, len(self))` best documents of each query, best first.

        Among equal scores the smaller position comes first. Documents that share no term with the query score 0
        and fill the remaining columns.

        Returns:
            Scores and positions.
        """
        k = min(k, self._size)
        scores = np.zeros((len(queries), k), dtype=np.float32)
        positions = np.zeros((len(queries), k), dtype=np.int64)
        self._in_threads(rank, queries, scores, positions)
        return scores, positions

    def scores_of(
        self, queries: Sequence[str], documents: Int64[ndarray, "queries any"]
    ) -> Float32[ndarray, "queries any"]:
        """Return the scores of the passed documents for each query, NaN for a position of -1."""
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        self._in_threads(gather, queries, np.ascontiguousarray(documents), scores)
        return scores

    def scores(self, query: str) -> Float32[ndarray, " documents"]:
        """Return the score of every document for one query."""
        return self.scores_of([query], np.arange(self._size)[None, :])[0]

    @activity("searching with BM25")
    def _in_threads(self, work: Callable[..., None], queries: Sequence[str], first: ndarray, second: ndarray) -> None:
        """Run a compiled function over chunks of queries in threads; it releases the interpreter's lock."""
        terms = [
            [self._vocabulary[term] for term in words if term in self._vocabulary]
            for words in (analyse(queries, ids=False) if queries else [])
        ]

        def fill(start: int) -> None:
            chunk = terms[start : start + _CHUNK]
            offsets = np.concatenate([[0], np.cumsum([len(each) for each in chunk])]).astype(np.int64)
            flat = np.array([term for each in chunk for term in each], dtype=np.int64)
            rows = slice(start, start + _CHUNK)
            work(*self._postings, flat, offsets, self._size, first[rows], second[rows])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(fill, range(0, len(queries), _CHUNK)))
