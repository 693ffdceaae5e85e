"""Sift quick scores: keep the documents that may be among the k best, score those exactly, and keep the k best.

1. `sift` walks a tile of quick scores and puts into each query's sieve every document whose score may reach the
   query's threshold. The documents of a chunk are held to the loosest bound among them, in one comparison.
2. A full sieve is tightened: k documents surely score at least the k-th highest lower bound, so that is a threshold,
   and what surely stays below it goes.
3. Where that leaves no room (many documents score alike), and at the end of a part, the sieve is settled: its
   documents are scored by `score.dot`, merged into the ranking, and the k-th score of that is a threshold.
4. A first threshold may be hoped for from a sample of the part. A ranking whose k-th score reaches it proves it; else
   the query is set back to where it was before the part, marked as failed, and to be searched again without hope.

So no more than a sieve's room is ever held of a query.

All of it is in one file: numba keeps compiled code by file, and does not notice that what it calls elsewhere changed.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba import prange
from numpy import ndarray

from raytriever.index.ranking import NONE, key_of, score_of
from raytriever.index.score import dot

# Documents that are compared at once, and those that are then looked at one by one.
CHUNK, PIECE = 64, 16
# Documents whose pairs are scored exactly while the processor's cache holds them.
SETTLED_ROWS = 4_096


class QueryBlock(NamedTuple):
    """Queries: float32 vectors, the terms of `arithmetic.Bounds`, and the document each may not find, or -1."""

    vectors: ndarray
    a: ndarray
    b: ndarray
    c: ndarray
    rounding: float
    excluded: ndarray


class DocumentBlock(NamedTuple):
    """Documents: float32 vectors, norms, residuals, positions in the corpus and places in the order of equals."""

    vectors: ndarray
    norms: ndarray
    residuals: ndarray
    positions: ndarray
    places: ndarray


class Sieves(NamedTuple):
    """By query: the threshold, the hope that it rests on or -inf, whether that failed, how many documents are held,
    their rows in the part (ascending), their scores (quick, then exact), and the ranking as keys in no order."""

    thresholds: ndarray
    hopes: ndarray
    failed: ndarray
    counts: ndarray
    rows: ndarray
    scores: ndarray
    best: ndarray


def sift(
    tile: ndarray, shift: np.uint32, first: int, base: int, asked: QueryBlock, part: DocumentBlock, sieves: Sieves
) -> None:
    """Take in a tile.

    Args:
        tile: quick scores of queries and documents, as unsigned bits.
        shift: what makes them the bits of a float32: 16 for bf16, else 0.
        first: the query of the tile's first row.
        base: the part's row of its first column.
        asked: the queries.
        part: the documents; norms and residuals of the tile's are known.
        sieves: of the queries.
    """
    starts = np.arange(0, tile.shape[1], CHUNK)
    norms, residuals = (
        np.maximum.reduceat(values[base : base + tile.shape[1]], starts) for values in (part.norms, part.residuals)
    )
    _sift(tile, shift, first, base, norms, residuals, asked, part, sieves)


def hope(
    tile: ndarray,
    shift: np.uint32,
    first: int,
    rows: ndarray,
    rank: int,
    asked: QueryBlock,
    part: DocumentBlock,
    sieves: Sieves,
) -> None:
    """Take as thresholds the `rank`-th highest lower bounds of a sample, whose quick scores the tile holds."""
    norms, residuals = part.norms[rows], part.residuals[rows]
    _hope_all(tile, shift, first, rank, norms, residuals, asked, sieves)


def settle(asked: QueryBlock, part: DocumentBlock, sieves: Sieves) -> None:
    """End a part: empty every sieve into its ranking."""
    _tighten_all(asked, part, sieves)
    scored = np.zeros(len(sieves.counts), np.int64)
    for end in range(SETTLED_ROWS, len(part.vectors) + SETTLED_ROWS, SETTLED_ROWS):
        _score_all(end, scored, asked, part, sieves)
    _merge_all(part, sieves)


# What runs in parallel is one call: numba lost the stores of a larger body.
@numba.njit(parallel=True, cache=True, error_model="numpy")
def _sift(tile, shift, first, base, norms, residuals, asked, part, sieves):  # type: ignore[no-untyped-def]
    for line in prange(tile.shape[0]):
        _sift_line(tile[line], shift, first + line, base, norms, residuals, asked, part, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _tighten_all(asked, part, sieves):  # type: ignore[no-untyped-def]
    for query in prange(len(sieves.counts)):
        _tighten(query, asked, part, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _score_all(end, scored, asked, part, sieves):  # type: ignore[no-untyped-def]
    for query in prange(len(sieves.counts)):
        scored[query] = _score(query, scored[query], end, asked, part, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _merge_all(part, sieves):  # type: ignore[no-untyped-def]
    for query in prange(len(sieves.counts)):
        _merge(query, part, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _hope_all(tile, shift, first, rank, norms, residuals, asked, sieves):  # type: ignore[no-untyped-def]
    for line in prange(tile.shape[0]):
        _hope(tile[line], shift, first + line, rank, norms, residuals, asked, sieves)


@numba.njit(cache=True, error_model="numpy")
def _hope(line, shift, query, rank, norms, residuals, asked, sieves):  # type: ignore[no-untyped-def]
    a, b, c, rounding = asked.a[query], asked.b[query], asked.c[query], asked.rounding
    least = np.empty(len(line))
    for place in range(len(line)):
        quick = np.float64(np.uint32(np.uint32(line[place]) << shift).view(np.float32))
        bound = quick - (a * norms[place] + b * residuals[place] + c + rounding * abs(quick))
        least[place] = bound if bound > -np.inf else -np.inf
    hope = np.partition(least, len(line) - rank)[len(line) - rank]
    if hope > sieves.thresholds[query]:
        sieves.thresholds[query] = sieves.hopes[query] = hope


@numba.njit(cache=True, error_model="numpy")
def _sift_line(line, shift, query, base, norms, residuals, asked, part, sieves):  # type: ignore[no-untyped-def]
    if sieves.failed[query]:
        return
    # Locals, and calls only where a sieve is full: what is passed costs more than what is done here.
    rows, scores, count = sieves.rows[query], sieves.scores[query], sieves.counts[query]
    excluded, positions, threshold = asked.excluded[query], part.positions, sieves.thresholds[query]
    a, b, c, rounding = asked.a[query], asked.b[query], asked.c[query], asked.rounding
    for chunk in range(len(norms)):
        lowest = _lowest(threshold, a * norms[chunk] + b * residuals[chunk] + c, rounding)
        start, end = chunk * CHUNK, min(chunk * CHUNK + CHUNK, len(line))
        if end - start == CHUNK and _reached(line, start, CHUNK, shift, lowest) == 0:
            continue
        for piece in range(start, end, PIECE):
            last = min(piece + PIECE, end)
            if last - piece == PIECE and _reached(line, piece, PIECE, shift, lowest) == 0:
                continue
            if count + PIECE > len(rows):
                sieves.counts[query] = count
                _make_room(query, asked, part, sieves)
                count, threshold = sieves.counts[query], sieves.thresholds[query]
            for place in range(piece, last):
                # Written whether it is taken or not: a branch would be guessed wrong too often.
                quick = np.uint32(np.uint32(line[place]) << shift).view(np.float32)
                rows[count], scores[count] = base + place, quick
                count += 0 if (quick < lowest) | (positions[base + place] == excluded) else 1
    sieves.counts[query] = count


@numba.njit(cache=True, error_model="numpy")
def _lowest(threshold, error, rounding):  # type: ignore[no-untyped-def]
    """The least quick score with which a document may reach the threshold."""
    lowest = threshold - error
    lowest = lowest / (1 + rounding) if lowest > 0 else lowest / (1 - rounding)
    return np.float32(lowest - abs(lowest) * 1e-6 - 1e-44)


@numba.njit(cache=True, error_model="numpy", inline="always")
def _reached(line, start, length, shift, lowest):  # type: ignore[no-untyped-def]
    """How many quick scores reach it; what is not a number does."""
    count = np.uint32(0)
    for place in range(np.uint64(start), np.uint64(start + length)):
        quick = np.uint32(np.uint32(line[place]) << shift).view(np.float32)
        count += np.uint32(0) if quick < lowest else np.uint32(1)
    return count


@numba.njit(cache=True, error_model="numpy")
def _make_room(query, asked, part, sieves):  # type: ignore[no-untyped-def]
    """Tighten a full sieve; settle it where that does not help."""
    _tighten(query, asked, part, sieves)
    if 4 * sieves.counts[query] > 3 * sieves.rows.shape[1]:
        _score(query, 0, len(part.vectors), asked, part, sieves)
        _merge(query, part, sieves)


@numba.njit(cache=True, error_model="numpy")
def _tighten(query, asked, part, sieves):  # type: ignore[no-untyped-def]
    """Raise the threshold to the k-th highest lower bound, and drop what stays below."""
    count, k = sieves.counts[query], sieves.best.shape[1]
    a, b, c, rounding = asked.a[query], asked.b[query], asked.c[query], asked.rounding
    rows, scores = sieves.rows[query], sieves.scores[query]
    least, most = np.empty(count), np.empty(count)
    for place in range(count):
        quick, row = np.float64(scores[place]), rows[place]
        error = a * part.norms[row] + b * part.residuals[row] + c + rounding * abs(quick)
        bound = quick - error
        least[place] = bound if bound > -np.inf else -np.inf
        most[place] = quick + error
    threshold = sieves.thresholds[query]
    if count >= k:
        threshold = max(threshold, np.partition(least, count - k)[count - k])
        sieves.thresholds[query] = threshold
    kept = 0
    for place in range(count):
        rows[kept], scores[kept] = rows[place], scores[place]
        kept += 0 if most[place] < threshold else 1
    sieves.counts[query] = kept


@numba.njit(cache=True, error_model="numpy")
def _score(query, place, end, asked, part, sieves):  # type: ignore[no-untyped-def]
    """Score exactly what the sieve holds from a place on, up to a row; the place after it."""
    count, rows, scores = sieves.counts[query], sieves.rows[query], sieves.scores[query]
    if place == count or rows[place] >= end:
        return place
    vector, sums = asked.vectors[query].astype(np.float64), np.empty(asked.vectors.shape[1])
    while place < count and rows[place] < end:
        scores[place] = dot(vector, part.vectors[rows[place]], sums)
        place += 1
    return place


@numba.njit(cache=True, error_model="numpy")
def _merge(query, part, sieves):  # type: ignore[no-untyped-def]
    """Empty a sieve whose scores are exact into the ranking."""
    k, count = sieves.best.shape[1], sieves.counts[query]
    keys = np.empty(k + count, np.uint64)
    total = 0
    for place in range(k):
        if sieves.best[query, place] != NONE:
            keys[total] = sieves.best[query, place]
            total += 1
    for place in range(count):
        keys[total] = key_of(sieves.scores[query, place], part.places[sieves.rows[query, place]])
        total += 1
    sieves.counts[query] = 0
    keys = keys[:total]
    if total > k:
        keys = np.partition(keys, k - 1)[:k]
    least = np.float64(score_of(keys.max())) if total >= k else -np.inf
    if least < sieves.hopes[query]:
        sieves.failed[query] = True
        return
    sieves.hopes[query] = -np.inf
    sieves.best[query, : len(keys)] = keys
    sieves.thresholds[query] = max(sieves.thresholds[query], least)
