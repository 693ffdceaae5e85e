"""Chebyshev nodes of a cell, and the one small matrix that ties fine subcells to them.

A cell carries NODES nodes of degree-7 interpolation on [-1, 1]; it is cut into SUBCELLS equal parts, each
with a cubic in x in [0, 1). Let R (SUBCELLS * 4 by NODES) take a function's values at the nodes to those
cubics' coefficients. Its transpose takes sums of 1, x, x^2, x^3 over scores in the subcells to weights w at
the nodes with

    sum_k f(score_k) = sum_l w_l f(node_l)   for every f that the interpolation resolves.

So one matrix serves to read gradients off the nodes and to gather scores onto them.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

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
