"""Kernel sums between two sets of scores that are given by weights at the nodes of one grid.

Scores t in units of tau, positives with weights V, negatives with weights W (weights at nodes stand for the
scores themselves, see `nodes`). Wanted, all sums over pairs:

    G(t)  = sum_p softplus(t - p)        the loss is sum_t W G
    G'(t) = sum_p sigmoid(t - p)         the derivative at each negative
    F(p)  = sum_n sigmoid(n - p)         minus the derivative at each positive

Cells less than 90 units apart are even, so the kernel depends on the difference of cells only. Three parts:

    near      a banded product
    above     softplus is linear, the sigmoid 1: prefix sums
    below     both are exp(t - p), a product of a factor of t and one of p: a sum of one number a cell

Where a sum is tiny all its terms are, so tiny losses keep their digits (a convolution by FFT would lose them).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.losses.mw.grid import NODES, Grid, chebyshev

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
    nodes = _nodes(grid)
    tail = _tail(grid, positives @ torch.exp(-nodes))[:, None] * torch.exp(nodes)
    # Counted from before the lowest positive, so that what all scores have in common does not cost digits.
    places = grid.places - grid.starts[:2][-1]
    count = _far_below(positives.sum(1), grid.reach)[:, None]
    sum_of_places = _far_below((positives * places).sum(1), grid.reach)[:, None]
    return total + tail + (places * count - sum_of_places), slope + tail + count


def kernel_sums_at_positives(
    grid: Grid, negatives: Float[Tensor, "cells nodes"], cells: Int64[Tensor, " positives"]
) -> Float[Tensor, "positives nodes"]:
    """F at the nodes of the positives' cells, from the negatives' weights."""
    nodes = _nodes(grid)
    sigmoid = torch.sigmoid(_differences(grid)).flatten(0, 1)
    tail = _tail(grid, (negatives @ torch.exp(nodes)).flip(0)).flip(0)
    above = _far_below(negatives.sum(1).flip(0), grid.reach).flip(0)
    if len(cells) < grid.cells:
        near = _banded(negatives, sigmoid, grid.reach, cells)
    else:
        near = _banded(negatives, sigmoid, grid.reach)[cells]
    return near + tail[cells, None] * torch.exp(-nodes) + above[cells, None]


def _nodes(grid: Grid) -> Float[Tensor, " nodes"]:
    """The nodes of a cell near positives, counted from its middle."""
    return chebyshev(NODES).to(grid.starts.device) * grid.width / 2


def _differences(grid: Grid) -> Float[Tensor, "band nodes nodes"]:
    """Node minus node for two cells `reach` to -`reach` apart: [cells apart, upper node, lower node]."""
    nodes = _nodes(grid)
    cells = torch.arange(-grid.reach, grid.reach + 1, dtype=torch.float64, device=grid.starts.device)
    return cells[:, None, None] * grid.width + (nodes[:, None] - nodes)


def _tail(grid: Grid, factors: Float[Tensor, " cells"]) -> Float[Tensor, " cells"]:
    """For each cell, the sum over the cells `reach` to `tail` above it of exp(-distance) times their factor."""
    distances = torch.arange(grid.reach + 1, grid.tail + 1, dtype=torch.float64, device=factors.device) * grid.width
    padded = torch.nn.functional.pad(factors, (0, grid.tail)).contiguous()[grid.reach + 1 :]
    return padded.as_strided((len(factors), len(distances)), (1, 1)) @ torch.exp(-distances)


def _banded(
    weights: Float[Tensor, "cells nodes"],
    kernel: Float[Tensor, "band_nodes out"],
    reach: int,
    cells: Int64[Tensor, " some"] | None = None,
) -> Float[Tensor, "some out"]:
    """The product of some cells, or of all, with the cells around them, a block of cells at a time."""
    band = 2 * reach + 1
    padded = torch.nn.functional.pad(weights, (0, 0, reach, reach)).contiguous()
    windows = padded.as_strided((len(weights), band * NODES), (NODES, 1))
    height = max(1, BAND_SCORES // (band * NODES))
    if cells is not None:
        return torch.cat([windows[block] @ kernel for block in cells.split(height)])
    return torch.cat([windows[start : start + height] @ kernel for start in range(0, len(weights), height)])


def _far_below(per_cell: Float[Tensor, " cells"], reach: int) -> Float[Tensor, " cells"]:
    """For each cell, the sum over all cells more than `reach` below it."""
    sums = per_cell.cumsum(0)
    return torch.nn.functional.pad(sums, (reach + 1, 0))[: len(per_cell)]
