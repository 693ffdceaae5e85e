"""The cells on which MW's kernel sums are tabulated, for any range of scores.

Scores are in units of tau, where softplus and the sigmoid are analytic within pi of the real axis, so that cells one
unit wide with 8 nodes interpolate to about 1e-9 (a quarter unit: to about 1e-13, for double precision).

A range of moderate width is one run of even cells. A huge one (unnormalised scores, tiny tau) is cut finely only near
positives: far enough from every positive softplus is linear or counts as 0, so each gap between them is a run of one
cell, however wide, and cells number at most about 190 a positive whatever the range.

Accuracy. Let u = 2^-53 and T the largest |score| in units of tau. The place of a positive and that of a negative take
seven roundings together, each of at most u T (u times the distance from a cell's start, at most 2 T, for two of
them), so their difference is wrong by e <= 7 u T. Since

    0 < d log softplus(x) / dx <= 1   and   0 < d log sigmoid(x) / dx < 1,

each pair's softplus and sigmoid are wrong by a factor of exp(e) at most. All terms are positive, so the same holds
for the loss and for the derivative by each score. At T = LARGEST_SCORE = 2^30 that is 8.4e-7; scores beyond it are
refused.

Nodes. A cell carries NODES nodes of degree-7 interpolation on [-1, 1]; it is cut into SUBCELLS equal parts, each with
a cubic in x in [0, 1). Let R (SUBCELLS * 4 by NODES) take a function's values at the nodes to those cubics'
coefficients. Its transpose takes sums of 1, x, x^2, x^3 over scores in the subcells to weights w at the nodes with

    sum_k f(score_k) = sum_l w_l f(node_l)   for every f that the interpolation resolves.

So one matrix serves to read gradients off the nodes and to gather scores onto them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.errors import LossInputError

NODES = 8
SUBCELLS = 16
TERMS = 4


def chebyshev(count: int) -> Float[Tensor, " nodes"]:
    """The roots of T_count, ascending, in [-1, 1]."""
    return -torch.cos((torch.arange(count, dtype=torch.float64) + 0.5) * torch.pi / count)


def lagrange(at: Float[Tensor, "*places"], nodes: Float[Tensor, " nodes"]) -> Float[Tensor, "*places nodes"]:
    """The value of each node's Lagrange polynomial at each place."""
    gaps = nodes[:, None] - nodes
    scale = gaps.fill_diagonal_(1).prod(1)
    ones = at.new_ones(*at.shape, 1)
    distances = at[..., None] - nodes
    before = torch.cat([ones, distances[..., :-1]], -1).cumprod(-1)
    after = torch.cat([ones, distances[..., 1:].flip(-1)], -1).cumprod(-1).flip(-1)
    return before * after / scale


@cache
def refinement() -> Float[Tensor, "terms nodes"]:
    """R: node values to the cubic coefficients of all subcells, subcell by subcell."""
    fine = (chebyshev(TERMS) + 1) / 2
    to_terms = torch.linalg.inv(fine[:, None] ** torch.arange(TERMS, dtype=torch.float64))
    starts = torch.arange(SUBCELLS, dtype=torch.float64)
    places = 2 * (starts[:, None] + fine) / SUBCELLS - 1
    values = lagrange(places, chebyshev(NODES))
    return (to_terms @ values).reshape(SUBCELLS * TERMS, NODES)


# How far a score must be above a positive for softplus to count as linear, and below it for the exponential: double
# precision holds no difference. And how far below it for 0: every loss that float32 can hold (exp(-88)) keeps its
# digits, except where that takes too many cells.
REACH = 40.0
TAIL = 88.0
EVEN_CELLS = 1 << 13
UNEVEN_CELLS = 1 << 17
# The largest |score| / tau for which loss and derivatives are accurate to 1e-6 (see above).
LARGEST_SCORE = 2.0**30


@dataclass(frozen=True)
class Grid:
    """Runs of even cells, ascending and without holes; the outer ends are open.

    Args:
        starts: the left end of each run, in units of tau.
        widths: the width of its cells.
        counts: how many cells it has.
        width: the width of the cells near positives.
        reach: how many cells apart a score and a positive must be to be treated as far apart.
        tail: how many cells a score must be below a positive to count for nothing.
        cells: how many cells there are.
    """

    starts: Float[Tensor, " runs"]
    widths: Float[Tensor, " runs"]
    counts: Int64[Tensor, " runs"]
    width: float
    reach: int
    tail: int
    cells: int

    @property
    def firsts(self) -> Int64[Tensor, " runs"]:
        """The first cell of each run."""
        return self.counts.cumsum(0) - self.counts

    @property
    def places(self) -> Float[Tensor, "cells nodes"]:
        """The nodes' scores."""
        run = torch.repeat_interleave(self.counts, output_size=self.cells)
        step = torch.arange(self.cells, device=run.device) - self.firsts[run]
        along = (chebyshev(NODES).to(run.device) + 1) / 2
        return self.starts[run, None] + (step[:, None] + along) * self.widths[run, None]

    def locate(
        self, scores: Float[Tensor, "*shape"], parts: int = 1
    ) -> tuple[Int64[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """The cell (or the part of a cell) that holds each score, and the score's place in it, from 0 to 1."""
        run = torch.searchsorted(self.starts, scores, right=True).sub_(1).clamp_(min=0)
        along = (scores - self.starts[run]) * (parts / self.widths[run])
        step = torch.minimum(along.long().clamp_(min=0), self.counts[run] * parts - 1)
        return self.firsts[run] * parts + step, along - step

    def subcells(self, scores: Float[Tensor, "*shape"]) -> tuple[Tensor, Float[Tensor, "*shape"]]:
        """The subcell of each score, counted over the whole grid, and its place in it."""
        return self.locate(scores, SUBCELLS)

    def weights(self, scores: Float[Tensor, " scores"]) -> tuple[Tensor, Float[Tensor, "scores nodes"]]:
        """The cell of each score, and the weights that give a function's value there from its nodes'."""
        cells, along = self.locate(scores)
        return cells, lagrange(2 * along - 1, chebyshev(NODES).to(scores.device))


def build_grid(positives: Float[Tensor, " positives"], lowest: float, highest: float, dtype: torch.dtype) -> Grid:
    """Cells that hold every score from `lowest` to `highest`.

    Args:
        positives: every positive's score in the batch, in units of tau, in double precision.
        lowest: no score is lower.
        highest: no score is higher.
        dtype: the precision of the scores.

    Raises:
        LossInputError: a score may be beyond `LARGEST_SCORE`.
    """
    largest = max(abs(lowest), abs(highest))
    if not largest <= LARGEST_SCORE:
        raise LossInputError(
            f"scores reach {largest:.3g} times the temperature; mw is accurate up to {LARGEST_SCORE:.3g} (2^30) times",
            remedy="normalise the embeddings (--similarity cosine), or raise --temperature",
        )
    width = 0.25 if dtype == torch.float64 else 1.0
    # A score computed in another order of summation may leave its own bound by a rounding.
    slack = width + 1e-5 * largest
    lowest, highest = lowest - slack, highest + slack
    count = math.ceil((highest - lowest) / width)
    if count <= EVEN_CELLS:
        start = torch.tensor([lowest], dtype=torch.float64, device=positives.device)
        counts = torch.full_like(start, count).long()
        return Grid(
            start,
            torch.full_like(start, width),
            counts,
            width,
            _cells_across(REACH, width),
            _cells_across(TAIL, width),
            count,
        )
    ascending = positives.sort().values
    grid = _near_positives(ascending, lowest, highest, width, TAIL)
    if grid.cells <= UNEVEN_CELLS:
        return grid
    return _near_positives(ascending, lowest, highest, width, REACH)


def _near_positives(
    positives: Float[Tensor, " positives"], lowest: float, highest: float, width: float, farthest: float
) -> Grid:
    """Clusters of even cells that go `farthest` beyond their outer positives, and one cell for each gap between."""
    tail = _cells_across(farthest, width)
    margin = (tail + 1) * width
    apart = positives.diff() > 2 * margin + width
    edge = torch.ones(1, dtype=torch.bool, device=positives.device)
    firsts = positives[torch.cat([edge, apart])] - margin
    counts = ((positives[torch.cat([apart, edge])] + margin - firsts) / width).ceil()
    ends = firsts + counts * width
    outer = torch.tensor([lowest, highest], dtype=torch.float64, device=positives.device)
    gap_starts = torch.cat([torch.minimum(outer[:1], firsts[:1] - width), ends])
    gap_ends = torch.cat([firsts, torch.maximum(outer[1:], ends[-1:] + width)])
    starts, order = torch.cat([firsts, gap_starts]).sort()
    widths = torch.cat([torch.full_like(firsts, width), gap_ends - gap_starts])[order]
    runs = torch.cat([counts, torch.ones_like(gap_starts)])[order].long()
    return Grid(starts, widths, runs, width, _cells_across(REACH, width), tail, int(runs.sum()))


def _cells_across(distance: float, width: float) -> int:
    # One cell more, because a distance between cells is up to one cell longer than between their scores.
    return math.ceil(distance / width) + 1
