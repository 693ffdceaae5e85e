"""Quick scores in float32: a matrix product that sifts its results while they are in the processor's cache.

Documents are transposed in panels of 16. The product of six queries and a panel stays in registers while it is summed,
and the scores of a span of panels are sifted before the next span is multiplied, so they never leave the cache.
Libraries write all scores to memory first; docs/explanation/decisions.md has their speeds.

The kernel is that of `raytriever.vectors`. It adds in float32, so the bound of `index.score` holds.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from jaxtyping import Float32
from numba import prange
from numpy import ndarray

from raytriever.index.exact.sift import CHUNK, DocumentBlock, QueryBlock, Sieves, chunk_maxima, guess_line, sift_lines
from raytriever.index.score import checked_norms, norm, norms_of, read_only
from raytriever.vectors import LANES, UNROLL, product, transpose

# Queries of one call of the kernel.
ROWS = 6
_product = product(ROWS)
# Components that are multiplied at a time: a panel of them fits into a first-level cache.
DEPTH = 384
# Panels whose scores are sifted at once; a multiple of CHUNK documents.
SPAN = 16
# Queries that a thread multiplies at a time fit into a second-level cache.
GROUP_BYTES = 2**18
# Queries whose thresholds are guessed at a time.
SAMPLED = 4 * ROWS


class Panels:
    """Float32 product of queries and documents on a CPU.

    Args:
        queries: embeddings.
    """

    rounding = 0.0

    def __init__(self, queries: Float32[ndarray, "queries width"]) -> None:
        self._queries = queries
        self.norms = checked_norms(norms_of(queries), "query", np.arange(len(queries)))
        self.residuals = np.zeros(len(queries))
        self._panels = np.empty((0, 0, LANES), np.float32)

    def select(self, rows: slice | ndarray) -> Float32[ndarray, "rows columns"]:
        """Return the factors of some queries, padded with zeros for the kernel."""
        queries = self._queries[rows]
        size, width = queries.shape
        factors = np.zeros((-(-size // ROWS) * ROWS, -(-width // UNROLL) * UNROLL), np.float32)
        factors[:size, :width] = queries
        return factors

    def sift(self, left: ndarray, rows: slice, queries: QueryBlock, block: DocumentBlock, sieves: Sieves) -> None:
        """Multiply queries and a slice of documents, and add the candidates to the sieves."""
        panels = self._pack(block, rows)
        norms, residuals = chunk_maxima(block, rows.start, rows.stop)
        _sift_all(left, _group(left), panels, rows.start, rows.stop, norms, residuals, queries, block, sieves)

    def guess(
        self, left: ndarray, rows: ndarray, rank: int, queries: QueryBlock, block: DocumentBlock, sieves: Sieves
    ) -> None:
        """Guess thresholds from a sample of documents; see `sift.guess`."""
        panels = self._pack(block, rows)
        norms, residuals = block.norms[rows], block.residuals[rows]
        _guess_all(left, panels, rank, norms, residuals, queries, sieves)

    def _pack(self, block: DocumentBlock, rows: slice | ndarray) -> Float32[ndarray, "panels columns lanes"]:
        """Return the panels of some documents, and store their norms and residuals in the block."""
        vectors = read_only(block.vectors[rows])
        count, columns = -(-len(vectors) // LANES), -(-vectors.shape[1] // UNROLL) * UNROLL
        if len(self._panels) < count:
            # By torch, which aligns to 64 bytes. The columns beyond the width stay 0.
            self._panels = torch.zeros((count, columns, LANES)).numpy()
        norms = np.empty(len(vectors))
        _pack_all(vectors, self._panels[:count], norms)
        block.norms[rows], block.residuals[rows] = checked_norms(norms, "document", block.positions[rows]), 0
        return self._panels[:count]


def _group(left: ndarray) -> int:
    """Return the number of queries that one thread multiplies at a time."""
    each = -(-len(left) // (ROWS * numba.get_num_threads()))
    return ROWS * max(1, min(each, GROUP_BYTES // (4 * ROWS * max(1, left.shape[1]))))


@numba.njit(cache=True, error_model="numpy")
def multiply(left, first, last, panels, start, end, out):  # type: ignore[no-untyped-def]
    """Write the products of queries `first` to `last` and panels `start` to `end`; `last - first` divides by ROWS."""
    columns = left.shape[1]
    for k in range(0, columns, DEPTH):
        steps = min(DEPTH, columns - k)
        for panel in range(start, end):
            for row in range(first, last, ROWS):
                to = (row - first) * out.shape[1] + (panel - start) * LANES
                at = (panel * columns + k) * LANES
                _product(left, row * columns + k, columns, panels, at, steps, out, to, out.shape[1], k == 0)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _sift_all(left, group, panels, base, stop, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    for number in prange((len(left) + group - 1) // group):
        _sift(left, number * group, group, panels, base, stop, norms, residuals, queries, block, sieves)


@numba.njit(cache=True, error_model="numpy")
def _sift(left, first, group, panels, base, stop, norms, residuals, queries, block, sieves):  # type: ignore[no-untyped-def]
    last = min(first + group, len(left))
    lines, count = np.empty((last - first, SPAN * LANES), np.float32), min(last, len(sieves.counts)) - first
    for start in range(0, len(panels), SPAN):
        end = min(start + SPAN, len(panels))
        multiply(left, first, last, panels, start, end, lines)
        row, chunk = base + start * LANES, start * LANES // CHUNK
        size = min(base + end * LANES, stop) - row
        sift_lines(lines, (0, count), size, first, row, chunk, norms, residuals, queries, block, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _guess_all(left, panels, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    for number in prange((len(left) + SAMPLED - 1) // SAMPLED):
        _guess(left, number * SAMPLED, panels, rank, norms, residuals, queries, sieves)


@numba.njit(cache=True, error_model="numpy")
def _guess(left, first, panels, rank, norms, residuals, queries, sieves):  # type: ignore[no-untyped-def]
    last = min(first + SAMPLED, len(left))
    lines = np.empty((last - first, len(panels) * LANES), np.float32)
    multiply(left, first, last, panels, 0, len(panels), lines)
    for query in range(first, min(last, len(sieves.counts))):
        guess_line(lines[query - first, : len(norms)], query, rank, norms, residuals, queries, sieves)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _pack_all(vectors, panels, norms):  # type: ignore[no-untyped-def]
    for panel in prange(len(panels)):
        _pack(panel, vectors, panels, norms)


@numba.njit(cache=True, error_model="numpy")
def _pack(panel, vectors, panels, norms):  # type: ignore[no-untyped-def]
    """Transpose the documents of a panel, and measure them."""
    width, columns, first = vectors.shape[1], panels.shape[1], panel * LANES
    count = min(LANES, len(vectors) - first)
    for row in range(first, first + count):
        norms[row] = norm(vectors[row])
    whole = width - width % 8 if count == LANES else 0
    for column in range(0, whole, 8):
        for lane in range(0, LANES, 8):
            to = (panel * columns + column) * LANES + lane
            transpose(vectors, (first + lane) * width + column, width, panels, to, LANES)
    for row in range(count):
        for column in range(whole, width):
            panels[panel, column, row] = vectors[first + row, column]
