"""BM25's scores and ranking of many queries, compiled: one pass over the postings of a query's terms, then a heap.

The scores are added up in the order of the query's terms, so they are those of bm25s to the last bit; and nothing of a
query's ranking depends on what else is asked, or in how many threads.
"""

from __future__ import annotations

import numba
import numpy as np


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
