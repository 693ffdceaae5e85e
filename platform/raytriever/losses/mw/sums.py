"""Kernel sums between two sets of scores, each described by weights at the nodes of one grid.

Scores t are in units of tau. Positives have weights V and negatives weights W: weights at nodes represent the scores
(see `grid`). All of these are sums over pairs:

    G(t)  = sum_p softplus(t - p)        the loss is sum_t W G
    G'(t) = sum_p sigmoid(t - p)         the derivative at each negative
    F(p)  = sum_n sigmoid(n - p)         minus the derivative at each positive

Cells less than 90 units apart are even, so the kernel depends on the difference of cells only. A sum has three terms:

    near      a banded product
    above     softplus is linear, the sigmoid 1: prefix sums
    below     both are exp(t - p), a product of a factor of t and one of p: a sum of one number a cell

If a sum is tiny, all its terms are tiny, so tiny losses keep their digits (a convolution by FFT would lose them).

Threads. oneMKL divides the inner dimension of a thin product between its threads, so the order of summation would
depend on their number. The band product is therefore summed in slices of `INNER_TERMS`, which oneMKL does not divide:
the result has the same bits with 1 to 16 threads on an Intel Xeon with AMX. oneMKL documents no such rule, so another
processor or release may differ in the last bits; the tests compare 1, 2 and 4 threads on the machine that runs them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.losses.mw.grid import NODES, Grid, chebyshev

BAND_SCORES = 1 << 22
INNER_TERMS = 256


def kernel_sums(
    grid: Grid, positives: Float[Tensor, "cells nodes"]
) -> tuple[Float[Tensor, "cells nodes"], Float[Tensor, "cells nodes"]]:
    """Compute G and G' at every node from the positives' weights."""
    difference = _differences(grid)
    softplus = torch.logaddexp(difference, torch.zeros_like(difference))
    # The cells of the band are ordered by ascending positive: the difference of cells decreases.
    both = torch.cat([softplus, torch.sigmoid(difference)], 1).flip(0).transpose(1, 2).flatten(0, 1)
    total, slope = _banded(positives, both, grid.reach).split(NODES, 1)
    nodes = _nodes(grid)
    tail = _tail(grid, positives @ torch.exp(-nodes))[:, None] * torch.exp(nodes)
    # Measured from a point below the lowest positive, so that an offset of all scores costs no digits.
    offsets = grid.node_scores - grid.starts[:2][-1]
    count = _far_below(positives.sum(1), grid.reach)[:, None]
    sum_of_offsets = _far_below((positives * offsets).sum(1), grid.reach)[:, None]
    return total + tail + (offsets * count - sum_of_offsets), slope + tail + count


def kernel_sums_at_positives(
    grid: Grid, negatives: Float[Tensor, "cells nodes"], cells: Int64[Tensor, " positives"]
) -> Float[Tensor, "positives nodes"]:
    """Compute F at the nodes of the positives' cells from the negatives' weights."""
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
    """Return the nodes of a cell near positives, relative to its middle."""
    return chebyshev(NODES, grid.starts.device) * grid.width / 2


def _differences(grid: Grid) -> Float[Tensor, "band nodes nodes"]:
    """Return node minus node for two cells `reach` to -`reach` apart: [cells apart, upper node, lower node]."""
    nodes = _nodes(grid)
    cells = torch.arange(-grid.reach, grid.reach + 1, dtype=torch.float64, device=grid.starts.device)
    return cells[:, None, None] * grid.width + (nodes[:, None] - nodes)


def _tail(grid: Grid, factors: Float[Tensor, " cells"]) -> Float[Tensor, " cells"]:
    """Return, for each cell, the sum over the cells `reach` to `tail` above it of exp(-distance) times their factor."""
    distances = torch.arange(grid.reach + 1, grid.tail + 1, dtype=torch.float64, device=factors.device) * grid.width
    padded = torch.nn.functional.pad(factors, (0, grid.tail)).contiguous()[grid.reach + 1 :]
    return padded.as_strided((len(factors), len(distances)), (1, 1)) @ torch.exp(-distances)


def _banded(
    weights: Float[Tensor, "cells nodes"],
    kernel: Float[Tensor, "band_nodes out"],
    reach: int,
    cells: Int64[Tensor, " some"] | None = None,
) -> Float[Tensor, "some out"]:
    """Return the product of some cells, or of all, with the cells around them; computed in blocks of cells."""
    band = 2 * reach + 1
    padded = torch.nn.functional.pad(weights, (0, 0, reach, reach)).contiguous()
    windows = padded.as_strided((len(weights), band * NODES), (NODES, 1))
    height = max(1, BAND_SCORES // (band * NODES))
    products = []
    for block in (torch.arange(len(weights), device=weights.device) if cells is None else cells).split(height):
        product = weights.new_zeros(len(block), kernel.shape[1])
        rows = windows[block]
        for start in range(0, band * NODES, INNER_TERMS):
            product.addmm_(rows[:, start : start + INNER_TERMS], kernel[start : start + INNER_TERMS])
        products.append(product)
    return torch.cat(products)


def _far_below(per_cell: Float[Tensor, " cells"], reach: int) -> Float[Tensor, " cells"]:
    """Return, for each cell, the sum over all cells more than `reach` below it."""
    # The second row is for a GPU, whose sum along a single row has no fixed order of additions.
    sums = torch.stack([per_cell, torch.zeros_like(per_cell)]).cumsum(1)[0]
    return torch.nn.functional.pad(sums, (reach + 1, 0))[: len(per_cell)]
