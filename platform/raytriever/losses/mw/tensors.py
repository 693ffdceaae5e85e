"""The walk over the scores in PyTorch, for CUDA and every other device; the compiled one is its twin on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from raytriever.losses.mw.grid import Grid
from raytriever.losses.mw.nodes import SUBCELLS, TERMS

BLOCK_SCORES = 1 << 22


class TensorWalk:
    """Sums over subcells that grow with every panel."""

    def __init__(self, grid: Grid, cubics: Tensor, scale: float) -> None:
        self._grid, self._scale = grid, scale
        self._cubics = cubics.reshape(-1, TERMS)
        self._sums = cubics.new_zeros(grid.cells * SUBCELLS, TERMS)

    def add(self, scores: Tensor, derivatives: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Take in a panel; `derivatives` may be `scores`. Pairs (rows, columns) count for nothing."""
        height = max(1, BLOCK_SCORES // scores.shape[1])
        excluded = torch.zeros(height, scores.shape[1], dtype=torch.bool, device=scores.device)
        for start in range(0, len(scores), height):
            block = slice(start, start + height)
            here = (rows >= start) & (rows < start + height)
            excluded.zero_()
            excluded[rows[here] - start, columns[here]] = True
            subcell, x = self._grid.subcells(scores[block].double() * self._scale)
            terms = torch.stack([torch.ones_like(x), x, x * x, x * x * x], -1)
            terms.masked_fill_(excluded[: len(x), :, None], 0)
            derivatives[block] = (self._cubics[subcell] * terms).sum(-1)
            self._sums.index_add_(0, subcell.flatten(), terms.flatten(0, 1))

    def sums(self) -> Tensor:
        """Sums of 1, x, x^2, x^3 over the scores in each subcell."""
        return self._sums
