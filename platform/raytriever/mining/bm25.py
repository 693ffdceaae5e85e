"""BM25 over passages: baseline of the evaluation tables and first source of hard negatives.

bm25s weighs the terms when the index is built (Lu 2024, arXiv:2407.03618; Robertson & Zaragoza 2009); `analyser`
defines the terms. The ranking is compiled: one pass over the postings of a query's terms, then a heap. Scores are
those of bm25s to the last bit, ties are broken by position, and a query's ranking depends neither on the other
queries nor on the threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import bm25s
import numba
import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.mining.analyser import analyse


@numba.njit(cache=True, nogil=True)
def add_scores(weights, documents, starts, terms, scores):  # type: ignore[no-untyped-def]
    """Add a query's score of every document to `scores`.

    Args:
        weights, documents: the postings of term t stand from `starts[t]` to `starts[t + 1]`.
        terms: of the query; one that stands twice counts twice.
        scores: `[documents]` float32, 0 before.
    """
    for term in terms:
        for place in range(starts[term], starts[term + 1]):
            scores[documents[place]] += weights[place]


@numba.njit(cache=True, nogil=True)
def rank(weights, documents, starts, terms, offsets, size, best, where):  # type: ignore[no-untyped-def]
    """Fill `best` and `where`, `[queries, k]`, with the highest scores of `size` documents, by score, then position.

    The terms of query q are `terms[offsets[q]:offsets[q + 1]]`; k is at most `size`.
    """
    scores = np.zeros(size, np.float32)
    for query in range(len(offsets) - 1):
        scores[:] = 0
        add_scores(weights, documents, starts, terms[offsets[query] : offsets[query + 1]], scores)
        _top(scores, best[query], where[query])


@numba.njit(cache=True, nogil=True)
def pick(weights, documents, starts, terms, offsets, size, wanted, found):  # type: ignore[no-untyped-def]
    """Fill `found` with the scores of the documents `wanted`, `[queries, any]`; untouched where one is -1."""
    scores = np.zeros(size, np.float32)
    for query in range(len(offsets) - 1):
        scores[:] = 0
        add_scores(weights, documents, starts, terms[offsets[query] : offsets[query + 1]], scores)
        for place in range(wanted.shape[1]):
            if wanted[query, place] >= 0:
                found[query, place] = scores[wanted[query, place]]


@numba.njit(cache=True, nogil=True)
def _top(scores, best, where):  # type: ignore[no-untyped-def]
    """The head of a stable sort by descending score: a heap with the one to go next on top, then emptied backwards."""
    size, k = 0, len(best)
    for position in range(len(scores)):
        score = scores[position]
        if size < k:
            best[size], where[size] = score, position
            child = size
            size += 1
            while child > 0 and _goes_first(best, where, child, (child - 1) // 2):
                _swap(best, where, child, (child - 1) // 2)
                child = (child - 1) // 2
        elif k > 0 and score > best[0]:
            best[0], where[0] = score, position
            _sink(best, where, size)
    while size > 1:
        size -= 1
        _swap(best, where, 0, size)
        _sink(best, where, size)


@numba.njit(cache=True, nogil=True)
def _sink(best, where, size):  # type: ignore[no-untyped-def]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        if child + 1 < size and _goes_first(best, where, child + 1, child):
            child += 1
        if not _goes_first(best, where, child, parent):
            return
        _swap(best, where, child, parent)
        parent = child


@numba.njit(cache=True, nogil=True)
def _goes_first(best, where, one, other):  # type: ignore[no-untyped-def]
    """Whether place `one` leaves the heap before `other`: a lower score, or an equal one further back."""
    return best[one] < best[other] or (best[one] == best[other] and where[one] > where[other])


@numba.njit(cache=True, nogil=True)
def _swap(best, where, one, other):  # type: ignore[no-untyped-def]
    best[one], best[other] = best[other], best[one]
    where[one], where[other] = where[other], where[one]


K1, B = 0.9, 0.4
# Queries of one piece of work: enough to keep a thread busy, few enough to share out.
_CHUNK = 256


class Bm25Index:
    """An index of texts.

    Args:
        texts: the passages, at least one; results name them by their positions here.
    """

    @activity("indexing the documents for BM25")
    def __init__(self, texts: Sequence[str]) -> None:
        self._size = len(texts)
        tokens = analyse(texts, ids=True)
        self._vocabulary: dict[str, int] = tokens.vocab
        self._postings = (np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64))
        # bm25s cannot index texts without a single term; nothing can match them either.
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
        """The `min(k, len(self))` best documents of each query, best first.

        Of equal scores the smaller position comes first. Documents that share no term with the query score 0
        and fill the places that are left.

        Returns:
            Their scores and their positions.
        """
        k = min(k, self._size)
        scores = np.zeros((len(queries), k), dtype=np.float32)
        positions = np.zeros((len(queries), k), dtype=np.int64)
        self._in_threads(rank, queries, scores, positions)
        return scores, positions

    def scores_of(
        self, queries: Sequence[str], documents: Int64[ndarray, "queries any"]
    ) -> Float32[ndarray, "queries any"]:
        """The scores of given documents for each query, NaN where a position is -1."""
        found = np.full(documents.shape, np.nan, dtype=np.float32)
        self._in_threads(pick, queries, np.ascontiguousarray(documents), found)
        return found

    def scores(self, query: str) -> Float32[ndarray, " documents"]:
        """The score of every document for one query."""
        return self.scores_of([query], np.arange(self._size)[None, :])[0]

    @activity("searching with BM25")
    def _in_threads(self, work: Callable[..., None], queries: Sequence[str], first: ndarray, second: ndarray) -> None:
        """Let compiled work fill its rows, some queries in each thread; it holds no lock of the interpreter."""
        terms = [
            [self._vocabulary[term] for term in found if term in self._vocabulary]
            for found in (analyse(queries, ids=False) if queries else [])
        ]

        def fill(start: int) -> None:
            mine = terms[start : start + _CHUNK]
            offsets = np.concatenate([[0], np.cumsum([len(each) for each in mine])]).astype(np.int64)
            flat = np.array([term for each in mine for term in each], dtype=np.int64)
            rows = slice(start, start + _CHUNK)
            work(*self._postings, flat, offsets, self._size, first[rows], second[rows])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(fill, range(0, len(queries), _CHUNK)))
