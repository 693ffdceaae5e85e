"""Sift quick scores: keep the documents that may be among the k best, score these exactly, and keep the k best.

A sieve is the buffer of candidates of one query.

1. `sift` and `panels` read quick scores and add every document whose score may reach the query's threshold to the
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
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy import ndarray

from raytriever.index.ranking import NONE, key_of, score_of, select
from raytriever.index.score import dot
from raytriever.vectors import in_threads

# Documents that are compared at once: the bits of a word.
CHUNK = 64
# Documents whose pairs are scored exactly while they are in the cache.
FLUSHED_BYTES = 2**22


class QueryBlock(NamedTuple):
    """Queries: float32 vectors, the terms of `score.error_terms`, the relative rounding of quick scores (one number),
    and the excluded document of each query, or -1."""

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
    first: int,
    base: int,
    queries: QueryBlock,
    block: DocumentBlock,
    sieves: Sieves,
) -> None:
    """Add the candidates of a tile to the sieves.

    Args:
        tile: quick scores of queries and documents in bf16, as unsigned bits.
        first: query of the tile's first row.
        base: row of the block of the tile's first column.
        queries: the queries.
        block: the documents; norms and residuals of the tile's documents are set.
        sieves: sieves of the queries.
    """
    norms, residuals = chunk_maxima(block, base, base + tile.shape[1])
    in_threads(_sift, len(tile), tile, first, base, norms, residuals, queries, block, sieves)


def chunk_maxima(block: DocumentBlock, start: int, stop: int) -> tuple[ndarray, ndarray]:
    """Return the largest norms and residuals of each chunk of some documents."""
    starts = np.arange(0, stop - start, CHUNK)
    norms, residuals = (np.maximum.reduceat(values[start:stop], starts) for values in (block.norms, block.residuals))
    return norms, residuals


def guess(
    tile: ndarray,
    first: int,
    rows: ndarray,
    rank: int,
    queries: QueryBlock,
    block: DocumentBlock,
    sieves: Sieves,
) -> None:
    """Guess thresholds: the `rank`-th highest lower bounds of a sample, whose quick scores are in the tile."""
    norms, residuals = block.norms[rows], block.residuals[rows]
    in_threads(_guess, len(tile), tile, first, rank, norms, residuals, queries, sieves)


def flush(queries: QueryBlock, block: DocumentBlock, sieves: Sieves) -> None:
    """Merge every sieve into its ranking at the end of a block."""
    step = max(1, FLUSHED_BYTES // max(1, 4 * block.vectors.shape[1]))
    in_threads(_flush, len(sieves.counts), step, queries, block, sieves)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _sift(start, end, tile, first, base, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    sift_lines(tile, (start, end), tile.shape[1], first, base, 0, norms, residuals, queries, block, sieves)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _guess(start, end, tile, first, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    for line in range(start, end):
        guess_line(tile[line], first + line, rank, norms, residuals, queries, sieves)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _flush(first, last, step, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Merge the sieves of some queries. Candidates are scored exactly, `step` documents after `step` documents."""
    for query in range(first, last):
        _tighten(query, queries, block, sieves)
    scored = np.zeros(last - first, np.int64)
    vector, sums = np.empty(queries.vectors.shape[1]), np.empty(queries.vectors.shape[1])
    size = len(block.vectors)
    for end in range(step, size + step, step):
        for query in range(first, last):
            i = scored[query - first]
            if i < sieves.counts[query] and sieves.rows[query, i] < end:
                scored[query - first] = _score(query, i, end, vector, sums, queries, block, sieves)
    for query in range(first, last):
        _merge(query, block, sieves)


@numba.njit(cache=True, error_model="numpy")
def guess_line(line, query, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    """Guess the threshold of a query from a line of quick scores of the sample; see `guess`."""
    a, b, c, rounding = queries.a[query], queries.b[query], queries.c[query], queries.rounding
    least = np.empty(len(line))
    for i in range(len(line)):
        quick = np.float64(quick_score(line[i]))
        bound = quick - (a * norms[i] + b * residuals[i] + c + rounding * abs(quick))
        least[i] = bound if bound > -np.inf else -np.inf
    guess = select(least, len(line) - rank)
    if guess > sieves.thresholds[query]:
        sieves.thresholds[query] = sieves.guesses[query] = guess


@numba.njit(cache=True, error_model="numpy")
def sift_lines(tile, lines, size, first, base, chunk, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Add the candidates of some queries among `size` documents.

    Args:
        tile: quick scores.
        lines: first line of the tile, and the line after the last.
        size: number of documents of a line.
        first: query of line 0.
        base: row of the block of the first document.
        chunk: index of the first document's chunk in the maxima.
        norms, residuals: maxima of the chunks.
        queries, block, sieves: see `sift`.
    """
    # Locals, and calls only for a full sieve, because passing arguments and references costs more than a line.
    rows, scores, counts, thresholds = sieves.rows, sieves.scores, sieves.counts, sieves.thresholds
    a, b, c, rounding, excluded = queries.a, queries.b, queries.c, queries.rounding, queries.excluded
    failed, positions, capacity = sieves.failed, block.positions, sieves.rows.shape[1]
    for line in range(lines[0], lines[1]):
        query = first + line
        if failed[query]:
            continue
        count = counts[query]
        for start in range(0, size, CHUNK):
            number = chunk + start // CHUNK
            error = a[query] * norms[number] + b[query] * residuals[number] + c[query]
            lowest = _lowest(thresholds[query], error, rounding)
            reached = _reached(tile, line * tile.shape[1] + start, lowest)
            if size - start < CHUNK:
                reached &= (np.uint64(1) << np.uint64(size - start)) - np.uint64(1)
            if reached == 0:
                continue
            if count + CHUNK > capacity:
                counts[query] = count
                _make_room(query, queries, block, sieves)
                count = counts[query]
            while reached:
                i = start + _lowest_bit(reached)
                reached &= reached - np.uint64(1)
                rows[query, count], scores[query, count] = base + i, quick_score(tile[line, i])
                count += positions[base + i] != excluded[query]
        counts[query] = count


@numba.njit(cache=True, error_model="numpy")
def _lowest(threshold, error, rounding):  # type: ignore[no-untyped-def]
    """Return the lowest quick score with which a document may reach the threshold."""
    lowest = threshold - error
    lowest = lowest / (1 + rounding) if lowest > 0 else lowest / (1 - rounding)
    return np.float32(lowest - abs(lowest) * 1e-6 - 1e-44)


@intrinsic
def _reached(typing, tile, at, lowest):  # type: ignore[no-untyped-def]
    """Return a bit for each of `CHUNK` quick scores from element `at` of a tile: set unless it is below the bound."""
    signature = types.uint64(tile, types.intp, types.float32)

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        tile, at, lowest = values
        pointer = builder.gep(context.make_array(signature.args[0])(context, builder, tile).data, [at])
        single, word = (ir.VectorType(kind, CHUNK) for kind in (ir.FloatType(), ir.IntType(32)))
        if signature.args[0].dtype == types.float32:
            scores = builder.load(builder.bitcast(pointer, single.as_pointer()), align=4)
        else:
            bits = builder.load(builder.bitcast(pointer, ir.VectorType(ir.IntType(16), CHUNK).as_pointer()), align=2)
            shifted = builder.shl(builder.zext(bits, word), ir.Constant(word, [16] * CHUNK))
            scores = builder.bitcast(shifted, single)
        bound = builder.insert_element(ir.Constant(single, None), lowest, ir.IntType(32)(0))
        bounds = builder.shuffle_vector(bound, bound, ir.Constant(word, None))
        # Unordered: NaN reaches every bound.
        return builder.bitcast(builder.fcmp_unordered(">=", scores, bounds), ir.IntType(64))

    return signature, generate


@intrinsic
def _prefetch(typing, array, at):  # type: ignore[no-untyped-def]
    """Begin to read an element of a contiguous array into the cache."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        )
        pointer = builder.gep(context.make_array(signature.args[0])(context, builder, values[0]).data, [values[1]])
        builder.call(function, [builder.bitcast(pointer, byte), word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def _lowest_bit(typing, bits):  # type: ignore[no-untyped-def]
    """Return the number of the lowest bit that is set."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.intp(types.uint64), generate


@intrinsic
def quick_score(typing, value):  # type: ignore[no-untyped-def]
    """Return the float32 of an element of a tile: a float32, or the bits of a bf16."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        if signature.args[0] == types.float32:
            return values[0]
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(values[0], word), word(16)), ir.FloatType())

    return types.float32(value), generate


@numba.njit(cache=True, error_model="numpy")
def _make_room(query, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Tighten a full sieve; flush it if that frees too little space."""
    _tighten(query, queries, block, sieves)
    if 4 * sieves.counts[query] > 3 * sieves.rows.shape[1]:
        vector, sums = np.empty(queries.vectors.shape[1]), np.empty(queries.vectors.shape[1])
        _score(query, 0, len(block.vectors), vector, sums, queries, block, sieves)
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
        threshold = max(threshold, select(least, count - k))
        sieves.thresholds[query] = threshold
    kept = 0
    for i in range(count):
        rows[kept], scores[kept] = rows[i], scores[i]
        kept += 0 if most[i] < threshold else 1
    sieves.counts[query] = kept


@numba.njit(cache=True, error_model="numpy")
def _score(query, i, end, vector, sums, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Score the candidates from index i up to row `end` exactly; return the next index.

    `vector` and `sums` are buffers.
    """
    count, rows, scores = sieves.counts[query], sieves.rows[query], sieves.scores[query]
    for column in range(len(vector)):  # numba takes three seconds to compile `vector[:] = ...`
        vector[column] = queries.vectors[query, column]
    while i < count and rows[i] < end:
        if i + 1 < count:
            # The processor does not foresee which row is next, and the memory is far.
            for column in range(0, len(vector), 16):
                _prefetch(block.vectors, np.intp(rows[i + 1]) * len(vector) + column)
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
    least = np.float64(score_of(select(keys, k - 1))) if total >= k else -np.inf
    keys = keys[:k]
    if least < sieves.guesses[query]:
        sieves.failed[query] = True
        return
    sieves.guesses[query] = -np.inf
    for i in range(len(keys)):
        sieves.best[query, i] = keys[i]
    sieves.thresholds[query] = max(sieves.thresholds[query], least)
