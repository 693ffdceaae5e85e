"""Compiled search of postings: the best documents of queries, and the scores of pairs.

A score is the sum of a document's weights in the order of the query's terms, in float32, whatever is skipped.
Documents are scored in blocks, all queries of a call in one block before the next, so that the sums of a block and the
postings that queries share stay in the processor's cache.
"""

from __future__ import annotations

import numba
import numpy as np

# Documents of a block: their sums take 256 kB.
_BLOCK = 1 << 16
# Sums that are compared with a bound at once.
_STRIP = 256
# A block is scanned rather than its postings once more if these are more than this share of its documents.
_SCANNED = 1 / 8


@numba.njit(cache=True, nogil=True)
def rank(weights, documents, starts, terms, offsets, size, best, positions):  # type: ignore[no-untyped-def]
    """Fill `best` and `positions`, `[queries, k]`, with the k best of `size` documents, by score, then position.

    The terms of query q are `terms[offsets[q]:offsets[q + 1]]`; a repeated term counts each time. The postings of term
    t are at the indices `starts[t]` to `starts[t + 1]`. k is at most `size`.
    """
    queries = len(offsets) - 1
    counts = np.zeros(queries, np.int64)
    begins, ends = starts[terms], starts[terms]
    scores = np.zeros(min(size, _BLOCK), np.float32)
    for first in range(0, size, _BLOCK):
        after = min(first + _BLOCK, size)
        for query in range(queries if best.shape[1] else 0):
            postings = 0
            for each in range(offsets[query], offsets[query + 1]):
                begins[each], last = ends[each], starts[terms[each] + 1]
                posting = begins[each]
                while posting < last and documents[posting] < after:
                    scores[documents[posting] - first] += weights[posting]
                    posting += 1
                ends[each] = posting
                postings += posting - begins[each]
            if postings > _SCANNED * (after - first):
                counts[query] = _scan(scores[: after - first], first, best[query], positions[query], counts[query])
                continue
            for each in range(offsets[query], offsets[query + 1]):
                for posting in range(begins[each], ends[each]):
                    position = np.int64(documents[posting])
                    score = scores[position - first]
                    if score > 0:
                        counts[query] = _offer(best[query], positions[query], counts[query], score, position)
                        scores[position - first] = 0
    for query in range(queries):
        _finish(best[query], positions[query], counts[query])


@numba.njit(cache=True, nogil=True)
def gather(weights, documents, starts, terms, offsets, size, wanted, gathered):  # type: ignore[no-untyped-def]
    """Fill `gathered` with the scores of the documents `wanted`, `[queries, any]`; skip entries of -1."""
    for query in range(len(offsets) - 1):
        for column in range(wanted.shape[1]):
            if wanted[query, column] >= 0:
                score = np.float32(0)
                for term in terms[offsets[query] : offsets[query + 1]]:
                    begin, end = starts[term], starts[term + 1]
                    posting = begin + np.searchsorted(documents[begin:end], np.uint32(wanted[query, column]))
                    if posting < end and documents[posting] == wanted[query, column]:
                        score += weights[posting]
                gathered[query, column] = score


@numba.njit(cache=True, nogil=True)
def _scan(scores, first, best, positions, count):  # type: ignore[no-untyped-def]
    """Offer the documents of a block that have a score, set all scores to 0, and return the number of entries."""
    for start in range(0, len(scores), _STRIP):
        strip = scores[start : start + _STRIP]
        bound = best[0] if count == len(best) else np.float32(0)
        above = 0
        for score in strip:
            above += score > bound
        if above:
            for row in range(len(strip)):
                if strip[row] > 0:
                    count = _offer(best, positions, count, strip[row], first + start + row)
        strip[:] = 0
    return count


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
