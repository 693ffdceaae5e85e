"""Grid of cells on which the kernel sums of the Mann-Whitney loss are tabulated, for any range of scores.

Scores are in units of tau. In this unit, softplus and the sigmoid are analytic within pi of the real axis. So cells one
unit wide with 8 nodes interpolate to about 1e-9. For double precision, cells are a quarter unit wide (about 1e-13).

If the range of scores is moderate, the grid is one run of cells of equal width (an even grid). If it is huge
(unnormalized scores, tiny tau), fine cells are only near positives. Far from every positive, softplus is linear or
treated as 0, so each gap between positives is one cell. There are at most about 190 cells per positive for any range.

Accuracy. Let u = 2^-53, and let T be the largest |score| in units of tau. Locating a positive and a negative takes
seven roundings together, each of at most u T (for two of them u times the distance from a cell's start, at most 2 T).
So the error of their difference is e <= 7 u T. Since

    0 < d log softplus(x) / dx <= 1   and   0 < d log sigmoid(x) / dx < 1,

the error changes each pair's softplus and sigmoid by a factor of at most exp(e). All terms are positive, so the same
holds for the loss and for the derivative by each score. At T = LARGEST_SCORE = 2^30 the relative error is 8.4e-7;
larger scores raise an error.

Nodes. A cell has NODES nodes of degree-7 interpolation on [-1, 1]. It is cut into SUBCELLS equal parts, each with a
cubic in x (0 to 1). The matrix R (SUBCELLS * 4 by NODES) maps a function's values at the nodes to the coefficients of
these cubics. Its transpose maps the sums of 1, x, x^2, x^3 over the scores in the subcells to weights w at the nodes
with

    sum_k f(score_k) = sum_l w_l f(node_l)   for every f that the interpolation resolves.

So one matrix has two uses: it converts values at nodes to gradients, and sums over scores to weights at nodes.

Kernel sums. Positives have weights V at the nodes, and negatives have weights W. All these are sums over pairs:

    G(t)  = sum_p softplus(t - p)        the loss is sum_t W G
    G'(t) = sum_p sigmoid(t - p)         the derivative at each negative
    F(p)  = sum_n sigmoid(n - p)         minus the derivative at each positive

Cells less than 90 units apart have equal widths, so the kernel depends only on their difference. A sum has three terms:

    near      a banded product
    above     softplus is linear, the sigmoid 1: prefix sums
    below     both are exp(t - p), a product of a factor of t and a factor of p: a sum of one number for each cell

If a sum is tiny, all its terms are tiny. So tiny losses stay accurate (a convolution by FFT would be inaccurate).

Threads. oneMKL divides the inner dimension of a thin product between its threads. Then the order of summation would
depend on their number. So the product with the band is summed in slices of `INNER_TERMS`, which oneMKL does not divide.
On an Intel Xeon with AMX, the result has the same bits with 1 to 16 threads. oneMKL does not document this, so another
CPU or release may differ in the last bits. The tests compare 1, 2 and 4 threads on the machine that runs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.core.errors import LossInputError, setting

CPU = torch.device("cpu")
NODES = 8
SUBCELLS = 16
TERMS = 4


@cache
def chebyshev(count: int, device: torch.device = CPU) -> Float[Tensor, " nodes"]:
    """Return the roots of T_count, ascending, in [-1, 1]."""
    return -torch.cos((torch.arange(count, dtype=torch.float64) + 0.5) * torch.pi / count).to(device)


def lagrange(points: Float[Tensor, "*points"], nodes: Float[Tensor, " nodes"]) -> Float[Tensor, "*points nodes"]:
    """Return the value of each node's Lagrange polynomial at each point."""
    gaps = nodes[:, None] - nodes
    scale = gaps.fill_diagonal_(1).prod(1)
    ones = points.new_ones(*points.shape, 1)
    distances = points[..., None] - nodes
    before = torch.cat([ones, distances[..., :-1]], -1).cumprod(-1)
    after = torch.cat([ones, distances[..., 1:].flip(-1)], -1).cumprod(-1).flip(-1)
    return before * after / scale


@cache
def refinement(device: torch.device = CPU) -> Float[Tensor, "terms nodes"]:
    """Return R (see above), which converts values at nodes to the coefficients of the cubics, subcell by subcell."""
    fine = (chebyshev(TERMS) + 1) / 2
    to_terms = torch.linalg.inv(fine[:, None] ** torch.arange(TERMS, dtype=torch.float64))
    starts = torch.arange(SUBCELLS, dtype=torch.float64)
    points = 2 * (starts[:, None] + fine) / SUBCELLS - 1
    values = lagrange(points, chebyshev(NODES))
    return (to_terms @ values).reshape(SUBCELLS * TERMS, NODES).to(device)


# Distance from a positive: for scores farther above it, softplus is treated as linear; for scores farther below it, as
# an exponential. In double precision, this changes nothing.
REACH = 40.0
# If a score is more than this below a positive, softplus is treated as 0. Losses down to exp(-88), the limit of
# float32, stay accurate, unless the grid would need more than `UNEVEN_CELLS` cells.
TAIL = 88.0
EVEN_CELLS = 1 << 13
UNEVEN_CELLS = 1 << 17
# Largest |score| / tau for which loss and derivatives are accurate to 1e-6 (see above).
LARGEST_SCORE = 2.0**30


@dataclass(frozen=True)
class Grid:
    """Runs of cells of equal width, ascending and without gaps. The outer ends are open."""

    starts: Float[Tensor, " runs"]  # left end of each run, in units of tau
    widths: Float[Tensor, " runs"]  # width of the cells of each run
    counts: Int64[Tensor, " runs"]  # number of cells of each run
    firsts: Int64[Tensor, " runs"]  # first cell of each run
    width: float  # width of the cells near positives
    reach: int  # a score and a positive are treated as far apart if more than this number of cells is between them
    tail: int  # softplus is treated as 0 more than this number of cells below a positive
    cells: int  # total number of cells
    # Number of the first subcell of an even grid (one run). The middle of subcell 0 is the score 0. None for an uneven
    # grid.
    first_subcell: int | None = None

    @property
    def even_start(self) -> float:
        """Left end of an even grid, in units of tau."""
        assert self.first_subcell is not None
        return (self.first_subcell - 0.5) / SUBCELLS * self.width

    @property
    def node_scores(self) -> Float[Tensor, "cells nodes"]:
        """Scores of the nodes."""
        run = torch.repeat_interleave(self.counts, output_size=self.cells)
        step = torch.arange(self.cells, device=run.device) - self.firsts[run]
        along = (chebyshev(NODES, run.device) + 1) / 2
        return self.starts[run, None] + (step[:, None] + along) * self.widths[run, None]

    def locate(
        self, scores: Float[Tensor, "*shape"], parts: int = 1
    ) -> tuple[Int64[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """Return the cell of each score, and the position within it, from 0 to 1.

        If `parts` > 1, each cell is divided into that many equal parts, which are numbered over the whole grid. Then
        return the part of each score, and the position within the part."""
        run = torch.searchsorted(self.starts, scores, right=True).sub_(1).clamp_(min=0)
        along = (scores - self.starts[run]) * (parts / self.widths[run])
        step = torch.minimum(along.long().clamp_(min=0), self.counts[run] * parts - 1)
        return self.firsts[run] * parts + step, along - step


def build_grid(positives: Float[Tensor, " positives"], lowest: float, highest: float, dtype: torch.dtype) -> Grid:
    """Build cells for every score from `lowest` to `highest`.

    Args:
        positives: score of every positive in the batch, in units of tau, in double precision; NaN in empty slots.
        dtype: precision of the scores.

    Raises:
        LossInputError: a bound exceeds `LARGEST_SCORE`.
    """
    largest = max(abs(lowest), abs(highest))
    if not largest <= LARGEST_SCORE:
        raise LossInputError(
            f"scores reach {largest:.3g} times the temperature, but mw is accurate up to {LARGEST_SCORE:.3g} (2^30)",
            remedy=f"normalize the embeddings ({setting('similarity')} cosine), or raise {setting('temperature')}",
        )
    width = 0.25 if dtype == torch.float64 else 1.0
    # Widen the bounds: if scores are summed in another order, rounding may bring them above their bound.
    slack = width + 1e-5 * largest
    lowest, highest = lowest - slack, highest + slack
    # The middles of an even grid's subcells are multiples of their width, so a GPU can locate scores by rounding.
    first_cell = math.floor(lowest / width)
    even_start = (first_cell - 0.5 / SUBCELLS) * width
    count = math.ceil((highest - even_start) / width)
    if count <= EVEN_CELLS:
        return Grid(
            *_one_run(even_start, width, count, positives.device),
            width,
            _cells_across(REACH, width),
            _cells_across(TAIL, width),
            count,
            first_cell * SUBCELLS,
        )
    ascending = fill_empty(positives).sort().values
    grid = _near_positives(ascending, lowest, highest, width, TAIL)
    if grid.cells <= UNEVEN_CELLS:
        return grid
    return _near_positives(ascending, lowest, highest, width, REACH)


@lru_cache(maxsize=4)
def _one_run(start: float, width: float, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `starts`, `widths`, `counts` and `firsts` of one run. With cosine scores, it is cached for all steps."""
    starts = torch.full((1,), start, dtype=torch.float64, device=device)
    counts = torch.full_like(starts, count).long()
    return starts, torch.full_like(starts, width), counts, torch.zeros_like(counts)


def fill_empty(positives: Float[Tensor, " positives"]) -> Float[Tensor, " positives"]:
    """Fill empty slots with the highest positive. Dropping them would make the CPU wait for the GPU."""
    return torch.where(positives.isnan(), positives.nan_to_num(-torch.inf).max(), positives)


def _near_positives(
    positives: Float[Tensor, " positives"], lowest: float, highest: float, width: float, farthest: float
) -> Grid:
    """Build runs of equal cells around the positives, up to `farthest` from the outermost, and a cell for each gap."""
    tail = _cells_across(farthest, width)
    margin = (tail + 1) * width
    apart = positives.diff() > 2 * margin + width
    edge = torch.ones(1, dtype=torch.bool, device=positives.device)
    firsts = positives[torch.cat([edge, apart])] - margin
    counts = ((positives[torch.cat([apart, edge])] + margin - firsts) / width).ceil()
    ends = firsts + counts * width
    gap_starts = torch.cat([(firsts[:1] - width).clamp(max=lowest), ends])
    gap_ends = torch.cat([firsts, (ends[-1:] + width).clamp(min=highest)])
    starts, order = torch.cat([firsts, gap_starts]).sort()
    widths = torch.cat([torch.full_like(firsts, width), gap_ends - gap_starts])[order]
    runs = torch.cat([counts, torch.ones_like(gap_starts)])[order].long()
    return Grid(starts, widths, runs, runs.cumsum(0) - runs, width, _cells_across(REACH, width), tail, int(runs.sum()))


def _cells_across(distance: float, width: float) -> int:
    # Add one cell, because the cells of two scores may be one cell farther apart than the scores.
    return math.ceil(distance / width) + 1


# ---------------------------------------------------------------------------------------------------------- kernel sums


BAND_SCORES = 1 << 22
INNER_TERMS = 256


def kernel_sums(
    grid: Grid, positives: Float[Tensor, "cells nodes"]
) -> tuple[Float[Tensor, "cells nodes"], Float[Tensor, "cells nodes"]]:
    """Compute G and G' at every node from the weights of the positives."""
    device = positives.device
    difference, nodes = _differences(grid.reach, grid.width, device), _nodes(grid.width, device)
    softplus = torch.logaddexp(difference, torch.zeros_like(difference))
    # Flip the order: the band runs over ascending positives, so the difference of cells (t - p) decreases.
    both = torch.cat([softplus, torch.sigmoid(difference)], 1).flip(0).transpose(1, 2).flatten(0, 1)
    total, slope = _banded(positives, both, grid.reach).split(NODES, 1)
    tail = _tail(grid, positives @ torch.exp(-nodes))[:, None] * torch.exp(nodes)
    # Measure offsets from near the lowest positive. Then a constant added to all scores loses no precision.
    offsets = grid.node_scores - grid.starts[:2][-1]
    count = _far_below(positives.sum(1), grid.reach)[:, None]
    sum_of_offsets = _far_below((positives * offsets).sum(1), grid.reach)[:, None]
    return total + tail + (offsets * count - sum_of_offsets), slope + tail + count


def kernel_sums_at_positives(
    grid: Grid, negatives: Float[Tensor, "cells nodes"], cells: Int64[Tensor, " positives"]
) -> Float[Tensor, "positives nodes"]:
    """Compute F at the nodes of the positives' cells from the weights of the negatives."""
    device = negatives.device
    difference, nodes = _differences(grid.reach, grid.width, device), _nodes(grid.width, device)
    sigmoid = torch.sigmoid(difference).flatten(0, 1)
    tail = _tail(grid, (negatives @ torch.exp(nodes)).flip(0)).flip(0)
    above = _far_below(negatives.sum(1).flip(0), grid.reach).flip(0)
    if len(cells) < grid.cells:
        near = _banded(negatives, sigmoid, grid.reach, cells)
    else:
        near = _banded(negatives, sigmoid, grid.reach)[cells]
    return near + tail[cells, None] * torch.exp(-nodes) + above[cells, None]


@cache
def _nodes(width: float, device: torch.device) -> Float[Tensor, " nodes"]:
    """Return the nodes of a cell near positives, relative to its middle."""
    return chebyshev(NODES, device) * width / 2


@cache
def _differences(reach: int, width: float, device: torch.device) -> Float[Tensor, "band nodes nodes"]:
    """Return the differences of the nodes of two cells that are -`reach` to `reach` cells apart."""
    nodes = _nodes(width, device)
    cells = torch.arange(-reach, reach + 1, dtype=torch.float64, device=device)
    return cells[:, None, None] * width + (nodes[:, None] - nodes)


def _tail(grid: Grid, factors: Float[Tensor, " cells"]) -> Float[Tensor, " cells"]:
    """Return, for each cell, the sum of exp(-distance) times factor over the cells `reach` to `tail` above it."""
    distances = torch.arange(grid.reach + 1, grid.tail + 1, dtype=torch.float64, device=factors.device) * grid.width
    padded = torch.nn.functional.pad(factors, (0, grid.tail)).contiguous()[grid.reach + 1 :]
    return padded.as_strided((len(factors), len(distances)), (1, 1)) @ torch.exp(-distances)


def _banded(
    weights: Float[Tensor, "cells nodes"],
    kernel: Float[Tensor, "band_nodes out"],
    reach: int,
    cells: Int64[Tensor, " some"] | None = None,
) -> Float[Tensor, "some out"]:
    """Multiply the weights of the band around each of `cells` (default: all) by the kernel, in blocks of cells."""
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
    # A second row is added for the GPU: it sums a single row in no fixed order.
    sums = torch.stack([per_cell, torch.zeros_like(per_cell)]).cumsum(1)[0]
    return torch.nn.functional.pad(sums, (reach + 1, 0))[: len(per_cell)]
