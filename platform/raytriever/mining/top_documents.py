"""Search of postings: the best documents of queries, and the scores of pairs.

For few pairs of queries and documents `rank_all` and `gather_all` score every document in NumPy. `rank` and `gather`,
with equal results, are compiled, which takes seconds the first time.

A score is the sum of a document's weights in the order of the query's terms, in float32, also where terms are skipped.
Documents are scored in blocks, all queries of a call in one block before the next, so that the sums of a block and the
postings that queries share stay in the processor's cache.

As soon as k documents are found, the frequent terms of a query are skipped (MaxScore: Turtle & Flood 1995): those whose
largest weights together are below the k-th best score. A document that has only these cannot be among the k best. One
whose other terms bring it near enough is looked up in the postings of every term.
"""

from __future__ import annotations

import numba
import numpy as np

# Documents of a block: their sums take 256 kB.
_BLOCK = 1 << 16
# Pairs that NumPy scores in less than half a second.
FEW_PAIRS = 1 << 22
# A sum of n weights in float32 exceeds the exact sum by a share of less than n times this.
_ROUNDING = 2.0**-23


@numba.njit(cache=True, nogil=True)
def rank(weights, documents, starts, largest, terms, offsets, size, best, positions):  # type: ignore[no-untyped-def]
    """Fill `best` and `positions`, `[queries, k]`, with the k best of `size` documents, by score, then position.

    The terms of query q are `terms[offsets[q]:offsets[q + 1]]`; a repeated term counts each time. The postings of term
    t are at the indices `starts[t]` to `starts[t + 1]`, and its largest weight is `largest[t]`. k is at most `size`.
    """
    queries, k = best.shape
    counts = np.zeros(queries, np.int64)
    begins, ends = starts[terms], starts[terms]
    # Terms of each query by their largest weight, and whether they are skipped from here on.
    order, skipped = np.empty(len(terms), np.int64), np.zeros(len(terms), np.bool_)
    for query in range(queries):
        first, last = offsets[query], offsets[query + 1]
        ranked = np.argsort(largest[terms[first:last]])
        for i in range(len(ranked)):  # numba takes three seconds to compile `order[first:last] = ...`
            order[first + i] = first + ranked[i]
    scores = np.zeros(min(size, _BLOCK), np.float32)
    for first in range(0, size, _BLOCK):
        after = min(first + _BLOCK, size)
        for query in range(queries if k else 0):
            own = range(offsets[query], offsets[query + 1])
            rest = 0.0
            if counts[query] == k:
                rest = _skip(largest, terms, order[own.start : own.stop], best[query, 0], skipped)
            for each in own:
                begins[each] = ends[each]
                if skipped[each]:
                    continue
                posting, last = begins[each], starts[terms[each] + 1]
                while posting < last and documents[posting] < after:
                    scores[documents[posting] - first] += weights[posting]
                    posting += 1
                ends[each] = posting
            for each in own:
                for posting in range(begins[each], ends[each]):
                    position = np.int64(documents[posting])
                    score = scores[position - first]
                    scores[position - first] = 0
                    if score == 0 or (counts[query] == k and _bound(score, rest, len(own)) < best[query, 0]):
                        continue
                    if rest:
                        score = _score(weights, documents, starts, terms[own.start : own.stop], position)
                    counts[query] = _offer(best[query], positions[query], counts[query], score, position)
    for query in range(queries):
        _finish(best[query], positions[query], counts[query])


@numba.njit(cache=True, nogil=True)
def gather(weights, documents, starts, terms, offsets, size, wanted, gathered):  # type: ignore[no-untyped-def]
    """Fill `gathered` with the scores of the documents `wanted`, `[queries, any]`; skip entries of -1."""
    for query in range(len(offsets) - 1):
        for column in range(wanted.shape[1]):
            if wanted[query, column] >= 0:
                own = terms[offsets[query] : offsets[query + 1]]
                gathered[query, column] = _score(weights, documents, starts, own, wanted[query, column])


def rank_all(weights, documents, starts, largest, terms, offsets, size, best, positions):  # type: ignore[no-untyped-def]
    """Do what `rank` does, by scoring every document."""
    for query in range(len(best)):
        scores = _score_all(weights, documents, starts, terms[offsets[query] : offsets[query + 1]], size)
        positions[query] = np.argsort(-scores, kind="stable")[: best.shape[1]]
        best[query] = scores[positions[query]]


def gather_all(weights, documents, starts, terms, offsets, size, wanted, gathered):  # type: ignore[no-untyped-def]
    """Do what `gather` does, by scoring every document."""
    for query in range(len(wanted)):
        scores = _score_all(weights, documents, starts, terms[offsets[query] : offsets[query + 1]], size)
        columns = np.flatnonzero(wanted[query] >= 0)
        gathered[query, columns] = scores[wanted[query, columns]]


def _score_all(weights, documents, starts, terms, size):  # type: ignore[no-untyped-def]
    """Return the scores of all documents for one query."""
    scores = np.zeros(size, np.float32)
    for term in terms:
        postings = slice(starts[term], starts[term + 1])
        scores[documents[postings]] += weights[postings]
    return scores


@numba.njit(cache=True, nogil=True)
def _skip(largest, terms, order, worst, skipped):  # type: ignore[no-untyped-def]
    """Skip the terms that cannot bring a document to the score `worst`, and return the sum of their largest weights."""
    total = 0.0
    for each in order:
        if _bound(largest[terms[each]], total, len(order)) >= worst:
            break
        total += largest[terms[each]]
        skipped[each] = True
    return total


@numba.njit(cache=True, nogil=True)
def _bound(score, rest, terms):  # type: ignore[no-untyped-def]
    """Return a number that `score` and `rest`, added in float32 in any order, do not exceed."""
    return (np.float64(score) + rest) * (1 + terms * _ROUNDING)


@numba.njit(cache=True, nogil=True)
def _score(weights, documents, starts, terms, position):  # type: ignore[no-untyped-def]
    """Return the score of one document."""
    score = np.float32(0)
    for term in terms:
        begin, end = starts[term], starts[term + 1]
        posting = begin + np.searchsorted(documents[begin:end], np.uint32(position))
        if posting < end and documents[posting] == position:
            score += weights[posting]
    return score


@numba.njit(cache=True, nogil=True)
def _offer(best, positions, count, score, position):  # type: ignore[no-untyped-def]
    """Enter a document into a heap of `count` entries, with the worst on top; return the new number."""
    if count < len(best):
        best[count], positions[count] = score, position
        child = count
        while child > 0 and _is_worse(best, positions, child, (child - 1) // 2):
            _swap(best, positions, child, (child - 1) // 2)
            child = (child - 1) // 2
        return count + 1
    if score > best[0] or (score == best[0] and position < positions[0]):
        best[0], positions[0] = score, position
        _sink(best, positions, count)
    return count


@numba.njit(cache=True, nogil=True)
def _finish(best, positions, count):  # type: ignore[no-untyped-def]
    """Sort a heap, the best first, and fill the rest with the first documents that have no score."""
    size = count
    while size > 1:
        size -= 1
        _swap(best, positions, 0, size)
        _sink(best, positions, size)
    scored = np.sort(positions[:count])
    position = row = 0
    for column in range(count, len(best)):
        while row < count and scored[row] == position:
            position += 1
            row += 1
        best[column], positions[column] = 0, position
        position += 1


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
