"""Quick scores of 16-bit integers: a matrix product that sifts its results while they are in the processor's cache.

A vector is multiplied by the number that makes its length 32,767, and rounded to integers. A sum of products of such
integers is below 2^31 for any components (Cauchy-Schwarz), so the sums of a product are exact. The rounding error of
each vector is measured. It is some 2^-12 of the length at width 384, less than with bf16.

AVX2 multiplies integers of 16 bits at twice the rate of float32. Documents are transposed in panels of 16. The product
of six queries and a panel stays in registers while it is summed, and the scores of a span of panels are sifted before
the next span is multiplied, so they never leave the cache. Libraries write all scores to memory first;
docs/explanation/decisions.md has their speeds.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch
from jaxtyping import Float32
from numpy import ndarray

from raytriever.index.exact.sift import CHUNK, DocumentBlock, QueryBlock, Sieves, chunk_maxima, guess_line, sift_lines
from raytriever.index.score import checked_norms, norm, read_only
from raytriever.integer_vectors import integer_product, scale_sums
from raytriever.vectors import LANES, in_threads, transpose

LONGEST = 32_767.0
# Queries of one call of the kernel.
ROWS = 6
# Components that are multiplied at a time: a panel of them fits into a first-level cache.
DEPTH = 384
# The width is filled up with zeros to a multiple of this, for transposition.
UNIT = 16
# Panels whose scores are sifted at once; a multiple of CHUNK documents.
SPAN = 8
# Most queries that a thread multiplies at a time: they and their scores fit into a second-level cache.
GROUP = 21 * ROWS
# Queries whose thresholds are guessed at a time.
SAMPLED = 4 * ROWS
_product = integer_product(ROWS, DEPTH)


class Left(NamedTuple):
    """Queries as integers, `[parts, queries, DEPTH]`, and the numbers that they are multiplied by."""

    integers: ndarray
    factors: ndarray


class Right(NamedTuple):
    """Documents as integers in panels, `[panels, columns * 16]`, the numbers that they are multiplied by, and zeros."""

    integers: ndarray
    factors: ndarray
    starts: ndarray
    bias: ndarray


class IntegerProduct:
    """Product of queries and documents as integers, on a CPU.

    Args:
        queries: embeddings.
    """

    # Of turning a sum into float32 and multiplying it twice.
    rounding = 2.0**-22
    # The sums are exact. Not 0, because norms may be infinite.
    unit = 2.0**-60

    def __init__(self, queries: Float32[ndarray, "queries width"]) -> None:
        width = queries.shape[1]
        self._columns = -(-width // UNIT) * UNIT
        integers = np.zeros((len(queries), self._columns), np.int16)
        self._factors = np.empty(len(queries), np.float32)
        norms, self.residuals = np.empty(len(queries)), np.empty(len(queries))
        in_threads(_round_rows, len(queries), read_only(queries), integers, self._factors, norms, self.residuals)
        self.norms = checked_norms(norms, "query", np.arange(len(queries)))
        self._integers = integers
        self._right = self._memory(0)

    def select(self, rows: slice | ndarray) -> Left:
        """Return the factors of some queries, padded with zeros for the kernel."""
        integers, factors = self._integers[rows], self._factors[rows]
        parts, size = -(-self._columns // DEPTH), -(-len(factors) // ROWS) * ROWS
        left = Left(np.zeros((parts, size, DEPTH), np.int16), np.zeros(size, np.float32))
        left.factors[: len(factors)] = factors
        for part in range(parts):
            some = integers[:, part * DEPTH : (part + 1) * DEPTH]
            left.integers[part, : len(some), : some.shape[1]] = some
        return left

    def sift(self, left: Left, rows: slice, queries: QueryBlock, block: DocumentBlock, sieves: Sieves) -> None:
        """Multiply queries and a slice of documents, and add the candidates to the sieves."""
        right = self._pack(block, rows)
        norms, residuals = chunk_maxima(block, rows.start, rows.stop)
        in_threads(
            _sift,
            len(left.factors) // ROWS,
            left,
            right,
            rows.start,
            rows.stop,
            norms,
            residuals,
            queries,
            block,
            sieves,
        )

    def guess(
        self, left: Left, rows: ndarray, rank: int, queries: QueryBlock, block: DocumentBlock, sieves: Sieves
    ) -> None:
        """Guess thresholds from a sample of documents; see `sift.guess`."""
        right = self._pack(block, rows)
        norms, residuals = block.norms[rows], block.residuals[rows]
        in_threads(_guess, len(left.factors) // ROWS, left, right, rank, norms, residuals, queries, sieves)

    def _pack(self, block: DocumentBlock, rows: slice | ndarray) -> Right:
        """Return the panels of some documents, and store their norms and residuals in the block."""
        vectors = read_only(block.vectors[rows])
        count = -(-len(vectors) // LANES)
        if len(self._right.integers) < count:
            self._right = self._memory(count)
        integers, *others = self._right
        right = Right(integers[:count], *(each[: count * LANES] for each in others))
        norms, residuals = np.empty(len(vectors)), np.empty(len(vectors))
        in_threads(_pack, count, vectors, right, norms, residuals)
        block.norms[rows] = checked_norms(norms, "document", block.positions[rows])
        block.residuals[rows] = residuals
        return right

    def _memory(self, count: int) -> Right:
        # By torch, which aligns to 64 bytes.
        integers = torch.empty((count, self._columns * LANES), dtype=torch.int16).numpy()
        size = count * LANES
        return Right(integers, np.empty(size, np.float32), np.zeros(size, np.int32), np.zeros(size, np.float32))


@numba.njit(cache=True, error_model="numpy")
def multiply(left, first, last, right, start, end, sums, out):  # type: ignore[no-untyped-def]
    """Write the products of queries `first` to `last` and panels `start` to `end`; `last - first` divides by ROWS.

    `sums` has room for 16 sums of each of these queries.
    """
    panels, size = right.integers, right.integers.shape[1]
    for panel in range(start, end):
        for part in range(len(left.integers)):
            before = part * DEPTH * LANES
            steps = min(DEPTH * LANES, size - before) // (2 * LANES)
            for row in range(first, last, ROWS):
                at = (part * left.integers.shape[1] + row) * DEPTH
                to = (row - first) * LANES
                _product(left.integers, at, panels, panel * size + before, steps, sums, to, part == 0)
        for row in range(first, last):
            to = (row - first) * out.shape[1] + (panel - start) * LANES
            at = (row - first) * LANES
            scale_sums(sums, at, right.starts, right.factors, right.bias, panel * LANES, left.factors[row], out, to)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _sift(start, end, left, right, base, stop, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    """Multiply and sift the queries of some calls of the kernel."""
    panels, size = len(right.integers), min(GROUP, (end - start) * ROWS)
    lines, sums = np.empty((size, SPAN * LANES), np.float32), np.empty((size, LANES), np.int32)
    for first in range(start * ROWS, end * ROWS, GROUP):
        last = min(first + GROUP, end * ROWS)
        count = min(last, len(sieves.counts)) - first
        for panel in range(0, panels, SPAN):
            following = min(panel + SPAN, panels)
            multiply(left, first, last, right, panel, following, sums, lines)
            row, chunk = base + panel * LANES, panel * LANES // CHUNK
            documents = min(base + following * LANES, stop) - row
            sift_lines(lines, (0, count), documents, first, row, chunk, norms, residuals, queries, block, sieves)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _guess(start, end, left, right, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    """Guess the thresholds of the queries of some calls of the kernel."""
    panels = len(right.integers)
    lines, sums = np.empty((SAMPLED, panels * LANES), np.float32), np.empty((SAMPLED, LANES), np.int32)
    for first in range(start * ROWS, end * ROWS, SAMPLED):
        last = min(first + SAMPLED, end * ROWS)
        multiply(left, first, last, right, 0, panels, sums, lines)
        for query in range(first, min(last, len(sieves.counts))):
            guess_line(lines[query - first, : len(norms)], query, rank, norms, residuals, queries, sieves)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _round_rows(first, last, vectors, integers, factors, norms, residuals):  # type: ignore[no-untyped-def]
    for row in range(first, last):
        norms[row], residuals[row], factors[row] = _round(vectors[row], integers[row])


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _pack(start, end, vectors, right, norms, residuals):  # type: ignore[no-untyped-def]
    """Round the documents of some panels, measure them, and transpose pairs of their integers."""
    columns = right.integers.shape[1] // LANES
    rounded = np.zeros((LANES, columns), np.int16)
    pairs, out = rounded.view(np.float32), right.integers.view(np.float32)
    for panel in range(start, end):
        first = panel * LANES
        for row in range(min(LANES, len(vectors) - first)):
            measured = _round(vectors[first + row], rounded[row])
            norms[first + row], residuals[first + row], right.factors[first + row] = measured
        for column in range(0, columns // 2, 8):
            for lane in range(0, LANES, 8):
                to = (panel * (columns // 2) + column) * LANES + lane
                transpose(pairs, lane * (columns // 2) + column, columns // 2, out, to, LANES)


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _round(vector, integers):  # type: ignore[no-untyped-def]
    """Write a vector as integers, and return its length, what rounding lost of it, and the factor of the integers."""
    length = norm(vector)
    factor, inverse = np.float32(length / LONGEST), 0.0
    if 0 < length < np.inf:
        inverse = LONGEST / length
    lost = 0.0
    for i in range(np.uint64(len(vector))):
        value = np.float64(vector[i])
        nearest = np.rint(value * inverse)
        integers[i] = np.int16(np.int32(nearest))
        rest = value - nearest * np.float64(factor)
        lost += rest * rest
    return length, np.sqrt(lost), factor
