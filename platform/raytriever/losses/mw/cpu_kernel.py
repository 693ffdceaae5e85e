"""Pass over the scores on a CPU, compiled by numba. It adds each score to its subcell, and writes its derivative.

Rows are split into chunks; the size of the grid determines their number. Each chunk has its own sums, which are added
up in order. So on any processor, the sums do not depend on the number of threads. A score takes about ten cycles."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raytriever.core.numba_threads import in_threads
from raytriever.losses.mw.grid import SUBCELLS, TERMS, Grid

CHUNKS = 16
CHUNK_CELLS = 1 << 17
# Fast-math flags. Multiply-adds may be fused. Sums must not be reordered, so `reassoc` is not set.
FUSED = {"contract", "nsz", "arcp"}


class CompiledWalk:
    """Pass over the panels of a CPU tensor. Every panel is added to the sums over subcells."""

    def __init__(self, grid: Grid, cubics: Tensor, scale: float) -> None:
        chunks = min(CHUNKS, max(1, CHUNK_CELLS // grid.cells))
        self._sums = np.zeros((chunks, grid.cells * SUBCELLS * TERMS))
        self._cubics = cubics.contiguous().numpy().reshape(-1)
        self._scale = scale
        self._runs = (
            grid.starts.numpy(),
            SUBCELLS / grid.widths.numpy(),
            grid.firsts.numpy() * SUBCELLS,
            grid.counts.numpy() * SUBCELLS,
        )

    def add(self, scores: Tensor, derivatives: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Add a panel without the excluded pairs (rows, columns), in ascending order. `derivatives` may be `scores`."""
        bounds = torch.searchsorted(rows, torch.arange(len(scores) + 1)).numpy()
        in_threads(
            _walk,
            len(self._sums),
            scores.numpy(),
            derivatives.numpy(),
            bounds,
            columns.numpy(),
            self._cubics,
            self._sums,
            self._scale,
            *self._runs,
        )

    def sums(self) -> Tensor:
        """Return the sums of 1, x, x^2, x^3 over the scores in each subcell. x is a score's position in its subcell."""
        return torch.from_numpy(self._sums.sum(0)).reshape(-1, TERMS)


@numba.njit(nogil=True, cache=True, fastmath=FUSED, error_model="numpy")
def _walk(first, last, scores, derivatives, bounds, columns, cubics, sums, scale, starts, inverse, firsts, counts):  # type: ignore[no-untyped-def]
    chunks, height, width = len(sums), scores.shape[0], scores.shape[1]
    for chunk in range(first, last):
        for row in range(chunk * height // chunks, (chunk + 1) * height // chunks):
            begin = 0
            for pair in range(bounds[row], bounds[row + 1] + 1):
                end = columns[pair] if pair < bounds[row + 1] else width
                some = scores[row, begin:end]
                out = derivatives[row, begin:end]
                if len(starts) == 1:
                    _add_even(some, out, cubics, sums[chunk], scale * inverse[0], starts[0] * inverse[0])
                else:
                    _add_uneven(some, out, cubics, sums[chunk], scale, starts, inverse, firsts, counts)
                if end < width:
                    derivatives[row, end] = 0
                begin = end + 1


@numba.njit(cache=True, fastmath=FUSED, error_model="numpy")
def _add_even(scores, out, cubics, sums, scale, lowest):  # type: ignore[no-untyped-def]
    # Unsigned indices need no check for negative values, which saves a tenth of the time.
    for index in range(np.uint64(len(scores))):
        along = np.float64(scores[index]) * scale - lowest
        step = np.int32(along)
        _add(out, index, cubics, sums, np.uint64(np.uint32(step)), along - step)


@numba.njit(cache=True, fastmath=FUSED, error_model="numpy")
def _add_uneven(scores, out, cubics, sums, scale, starts, inverse, firsts, counts):  # type: ignore[no-untyped-def]
    for index in range(np.uint64(len(scores))):
        score = np.float64(scores[index]) * scale
        low, high = 0, len(starts)
        while high - low > 1:
            middle = (low + high) // 2
            if starts[middle] <= score:
                low = middle
            else:
                high = middle
        along = (score - starts[low]) * inverse[low]
        step = min(max(np.int64(along), 0), counts[low] - 1)
        _add(out, index, cubics, sums, np.uint64(firsts[low] + step), along - step)


@numba.njit(cache=True, fastmath=FUSED, error_model="numpy", inline="always")
def _add(out, index, cubics, sums, subcell, x):  # type: ignore[no-untyped-def]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    at = subcell * np.uint64(4)
    square = x * x
    out[index] = (cubics[at] + cubics[at + one] * x) + square * (cubics[at + two] + cubics[at + three] * x)
    sums[at] += 1.0
    sums[at + one] += x
    sums[at + two] += square
    sums[at + three] += square * x
