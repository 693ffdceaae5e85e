"""Kernel sums between two sets of scores that are given by weights at the nodes of one grid.

Scores t in units of tau, positives with weights V, negatives with weights W (weights at nodes stand for the
scores themselves, see `nodes`). Wanted, all sums over pairs:

    G(t)  = sum_p softplus(t - p)        the loss is sum_t W G
    G'(t) = sum_p sigmoid(t - p)         the derivative at each negative
    F(p)  = sum_n sigmoid(n - p)         minus the derivative at each positive

Within REACH the cells are even, so the kernel depends on the difference of cells only: a banded product.
Beyond it softplus is 0 below and linear above, the sigmoid 0 or 1: prefix sums. Where a sum is tiny all its
terms are, so tiny losses keep their digits (a convolution by FFT would lose them).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.mw.grid import Grid
from raytriever.losses.mw.nodes import NODES, chebyshev

BAND_SCORES = 1 << 22


def kernel_sums(
    grid: Grid, positives: Float[Tensor, "cells nodes"]
) -> tuple[Float[Tensor, "cells nodes"], Float[Tensor, "cells nodes"]]:
    """G and G' at every node, from the positives' weights."""
    difference = _differences(grid)
    softplus = torch.logaddexp(difference, torch.zeros_like(difference))
    # The band's cells come by ascending positive: the difference of cells falls.
    both = torch.cat([softplus, torch.sigmoid(difference)], 1).flip(0).transpose(1, 2).flatten(0, 1)
    total, slope = _banded(positives, both, grid.reach).split(NODES, 1)
    places = grid.places
    count = _far_below(positives.sum(1), grid.reach)[:, None]
    sum_of_places = _far_below((positives * places).sum(1), grid.reach)[:, None]
    return total + (places * count - sum_of_places), slope + count


def kernel_sums_at_positives(grid: Grid, negatives: Float[Tensor, "cells nodes"]) -> Float[Tensor, "cells nodes"]:
    """F at every node, from the negatives' weights."""
    sigmoid = torch.sigmoid(_differences(grid)).flatten(0, 1)
    near = _banded(negatives, sigmoid, grid.reach)
    above = _far_below(negatives.sum(1).flip(0), grid.reach).flip(0)
    return near + above[:, None]


def _differences(grid: Grid) -> Float[Tensor, "band nodes nodes"]:
    """Node minus node for two cells `reach` to -`reach` apart: [cells apart, upper node, lower node]."""
    nodes = chebyshev(NODES).to(grid.starts.device) * grid.width / 2
    cells = torch.arange(-grid.reach, grid.reach + 1, dtype=torch.float64, device=grid.starts.device)
    return cells[:, None, None] * grid.width + (nodes[:, None] - nodes)


def _banded(
    weights: Float[Tensor, "cells nodes"], kernel: Float[Tensor, "band_nodes out"], reach: int
) -> Float[Tensor, "cells out"]:
    """Each cell's product with the cells around it, a block of cells at a time."""
    band = 2 * reach + 1
    padded = torch.nn.functional.pad(weights, (0, 0, reach, reach)).contiguous()
    windows = padded.as_strided((len(weights), band * NODES), (NODES, 1))
    height = max(1, BAND_SCORES // (band * NODES))
    return torch.cat([windows[start : start + height] @ kernel for start in range(0, len(weights), height)])


def _far_below(per_cell: Float[Tensor, " cells"], reach: int) -> Float[Tensor, " cells"]:
    """For each cell, the sum over all cells more than `reach` below it."""
    sums = per_cell.cumsum(0)
    return torch.nn.functional.pad(sums, (reach + 1, 0))[: len(per_cell)]
