"""Sift quick scores: keep the documents that may be among the k best, score these exactly, and keep the k best.

A sieve is the buffer of candidates of one query.

1. `sift` reads a tile of quick scores and adds every document whose score may reach the query's threshold to the
   query's sieve. All documents of a chunk are compared with the loosest bound among them.
2. A full sieve is tightened. k documents certainly score at least the k-th highest lower bound, so this is a threshold,
   and documents that are certainly below it are removed.
3. If that does not free enough space (many documents have similar scores), and at the end of a block, the sieve is
   flushed: its documents are scored by `score.dot` and merged into the ranking. The k-th score is a threshold.
4. A first threshold may be guessed from a sample of the block. A ranking whose k-th score reaches it proves it.
   Otherwise the query is reset to its state before the block, marked as failed, and searched again without a guess.

So the memory per query never exceeds the capacity of a sieve.

Everything is in one file, because numba caches compiled code by file and does not notice changes in other files.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba import prange
from numpy import ndarray

from raytriever.index.ranking import NONE, key_of, score_of
from raytriever.index.score import dot

# Documents that are compared at once, and documents that are then examined one by one.
CHUNK, PIECE = 64, 16
# Documents whose pairs are scored exactly while they are in the processor's cache.
FLUSHED_ROWS = 4_096


class QueryBlock(NamedTuple):
    """Queries: float32 vectors, the terms of `score.Bounds`, and the excluded document of each query, or -1."""

    vectors: ndarray
    a: ndarray
    b: ndarray
    c: ndarray
    rounding: float
    excluded: ndarray


class DocumentBlock(NamedTuple):
    """Documents: float32 vectors, norms, residuals, positions in the corpus and ranks among equal scores."""

    vectors: ndarray
    norms: ndarray
    residuals: ndarray
    positions: ndarray
    ranks: ndarray


class Sieves(NamedTuple):
    """Sieves of some queries.

    For each query: the threshold, the unproven guess or -inf, a flag for a failed guess, the number of candidates,
    their rows in the block (ascending), their scores (quick, then exact), and the ranking as unordered keys.
    """

    thresholds: ndarray
    guesses: ndarray
    failed: ndarray
    counts: ndarray
    rows: ndarray
    scores: ndarray
    best: ndarray


def sift(
    tile: ndarray,
    shift: np.uint32,
    first: int,
    base: int,
    queries: QueryBlock,
    block: DocumentBlock,
    sieves: Sieves,
) -> None:
    """Add the candidates of a tile to the sieves.

    Args:
        tile: quick scores of queries and documents, as unsigned bits.
        shift: left shift that gives the bits of a float32: 16 for bf16, else 0.
        first: query of the tile's first row.
        base: row of the block of the tile's first column.
        queries: the queries.
        block: the documents; norms and residuals of the tile's documents are set.
        sieves: sieves of the queries.
    """
    starts = np.arange(0, tile.shape[1], CHUNK)
    norms, residuals = (
        np.maximum.reduceat(values[base : base + tile.shape[1]], starts) for values in (block.norms, block.residuals)
    )
    _sift(tile, shift, first, base, norms, residuals, queries, block, sieves)


def guess(
    tile: ndarray,
    shift: np.uint32,
    first: int,
    rows: ndarray,
    rank: int,
    queries: QueryBlock,
    block: DocumentBlock,
    sieves: Sieves,
) -> None:
    """Guess thresholds: the `rank`-th highest lower bounds of a sample, whose quick scores are in the tile."""
    norms, residuals = block.norms[rows], block.residuals[rows]
    _guess_all(tile, shift, first, rank, norms, residuals, queries, sieves)


def flush(queries: QueryBlock, block: DocumentBlock, sieves: Sieves) -> None:
    """Merge every sieve into its ranking at the end of a block."""
    _tighten_all(queries, block, sieves)
    scored = np.zeros(len(sieves.counts), np.int64)
    for end in range(FLUSHED_ROWS, len(block.vectors) + FLUSHED_ROWS, FLUSHED_ROWS):
        _score_all(end, scored, queries, block, sieves)
    _merge_all(block, sieves)


# The parallel loops call one function, because numba lost the stores of larger bodies.
@numba.njit(parallel=True, cache=True, error_model="numpy")
def _sift(tile, shift, first, base, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    for line in prange(tile.shape[0]):
        _sift_line(tile[line], shift, first + line, base, norms, residuals, queries, block, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _tighten_all(queries, block, sieves):  # type: ignore[no-untyped-def]
    for query in prange(len(sieves.counts)):
        _tighten(query, queries, block, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _score_all(end, scored, queries, block, sieves):  # type: ignore[no-untyped-def]
    for query in prange(len(sieves.counts)):
        scored[query] = _score(query, scored[query], end, queries, block, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _merge_all(block, sieves):  # type: ignore[no-untyped-def]
    for query in prange(len(sieves.counts)):
        _merge(query, block, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _guess_all(tile, shift, first, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    for line in prange(tile.shape[0]):
        _guess(tile[line], shift, first + line, rank, norms, residuals, queries, sieves)


@numba.njit(cache=True, error_model="numpy")
def _guess(line, shift, query, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    a, b, c, rounding = queries.a[query], queries.b[query], queries.c[query], queries.rounding
    least = np.empty(len(line))
    for i in range(len(line)):
        quick = np.float64(np.uint32(np.uint32(line[i]) << shift).view(np.float32))
        bound = quick - (a * norms[i] + b * residuals[i] + c + rounding * abs(quick))
        least[i] = bound if bound > -np.inf else -np.inf
    guess = np.partition(least, len(line) - rank)[len(line) - rank]
    if guess > sieves.thresholds[query]:
        sieves.thresholds[query] = sieves.guesses[query] = guess


@numba.njit(cache=True, error_model="numpy")
def _sift_line(line, shift, query, base, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    if sieves.failed[query]:
        return
    # Locals, and calls only for a full sieve, because passing arguments costs more than this loop.
    rows, scores, count = sieves.rows[query], sieves.scores[query], sieves.counts[query]
    excluded, positions, threshold = queries.excluded[query], block.positions, sieves.thresholds[query]
    a, b, c, rounding = queries.a[query], queries.b[query], queries.c[query], queries.rounding
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
                _make_room(query, queries, block, sieves)
                count, threshold = sieves.counts[query], sieves.thresholds[query]
            for i in range(piece, last):
                # Written unconditionally, because a branch would be mispredicted too often.
                quick = np.uint32(np.uint32(line[i]) << shift).view(np.float32)
                rows[count], scores[count] = base + i, quick
                count += 0 if (quick < lowest) | (positions[base + i] == excluded) else 1
    sieves.counts[query] = count


@numba.njit(cache=True, error_model="numpy")
def _lowest(threshold, error, rounding):  # type: ignore[no-untyped-def]
    """Return the lowest quick score with which a document may reach the threshold."""
    lowest = threshold - error
    lowest = lowest / (1 + rounding) if lowest > 0 else lowest / (1 - rounding)
    return np.float32(lowest - abs(lowest) * 1e-6 - 1e-44)


@numba.njit(cache=True, error_model="numpy", inline="always")
def _reached(line, start, length, shift, lowest):  # type: ignore[no-untyped-def]
    """Count the quick scores that reach the bound; NaN counts too."""
    count = np.uint32(0)
    for i in range(np.uint64(start), np.uint64(start + length)):
        quick = np.uint32(np.uint32(line[i]) << shift).view(np.float32)
        count += np.uint32(0) if quick < lowest else np.uint32(1)
    return count


@numba.njit(cache=True, error_model="numpy")
def _make_room(query, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Tighten a full sieve; flush it if that frees too little space."""
    _tighten(query, queries, block, sieves)
    if 4 * sieves.counts[query] > 3 * sieves.rows.shape[1]:
        _score(query, 0, len(block.vectors), queries, block, sieves)
        _merge(query, block, sieves)


@numba.njit(cache=True, error_model="numpy")
def _tighten(query, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Raise the threshold to the k-th highest lower bound, and remove the documents below it."""
    count, k = sieves.counts[query], sieves.best.shape[1]
    a, b, c, rounding = queries.a[query], queries.b[query], queries.c[query], queries.rounding
    rows, scores = sieves.rows[query], sieves.scores[query]
    least, most = np.empty(count), np.empty(count)
    for i in range(count):
        quick, row = np.float64(scores[i]), rows[i]
        error = a * block.norms[row] + b * block.residuals[row] + c + rounding * abs(quick)
        bound = quick - error
        least[i] = bound if bound > -np.inf else -np.inf
        most[i] = quick + error
    threshold = sieves.thresholds[query]
    if count >= k:
        threshold = max(threshold, np.partition(least, count - k)[count - k])
        sieves.thresholds[query] = threshold
    kept = 0
    for i in range(count):
        rows[kept], scores[kept] = rows[i], scores[i]
        kept += 0 if most[i] < threshold else 1
    sieves.counts[query] = kept


@numba.njit(cache=True, error_model="numpy")
def _score(query, i, end, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Score the candidates from index i up to row `end` exactly; return the next index."""
    count, rows, scores = sieves.counts[query], sieves.rows[query], sieves.scores[query]
    if i == count or rows[i] >= end:
        return i
    vector, sums = queries.vectors[query].astype(np.float64), np.empty(queries.vectors.shape[1])
    while i < count and rows[i] < end:
        scores[i] = dot(vector, block.vectors[rows[i]], sums)
        i += 1
    return i


@numba.njit(cache=True, error_model="numpy")
def _merge(query, block, sieves):  # type: ignore[no-untyped-def]
    """Merge a sieve with exact scores into the ranking."""
    k, count = sieves.best.shape[1], sieves.counts[query]
    keys = np.empty(k + count, np.uint64)
    total = 0
    for i in range(k):
        if sieves.best[query, i] != NONE:
            keys[total] = sieves.best[query, i]
            total += 1
    for i in range(count):
        keys[total] = key_of(sieves.scores[query, i], block.ranks[sieves.rows[query, i]])
        total += 1
    sieves.counts[query] = 0
    keys = keys[:total]
    if total > k:
        keys = np.partition(keys, k - 1)[:k]
    least = np.float64(score_of(keys.max())) if total >= k else -np.inf
    if least < sieves.guesses[query]:
        sieves.failed[query] = True
        return
    sieves.guesses[query] = -np.inf
    sieves.best[query, : len(keys)] = keys
    sieves.thresholds[query] = max(sieves.thresholds[query], least)
