"""Rand1LH: InfoNCE on one positive, drawn again at every step (multi-positive paper, Eq. 5).

The draw is a function of (seed, step, query id) alone. It does not depend on the number of workers, on the position of
the query in the batch or on earlier draws.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from raytriever.losses.engine.batch import BatchIds
from raytriever.losses.engine.relevance import PAD
from raytriever.losses.engine.rows import RowLoss
from raytriever.losses.infonce import infonce

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def draw_positive(columns: Int64[Tensor, "rows positives"], ids: BatchIds) -> Int64[Tensor, "rows one"]:
    """Draw one of each query's positives, all with the same probability."""
    is_positive = columns != PAD
    state = torch.full_like(ids.queries, ids.seed)
    for word in (torch.full_like(ids.queries, ids.step), ids.queries):
        state = _mix(state + _GOLDEN) ^ word
    # The product of 31 bits and a count of at most 2^31 has at most 62 bits.
    uniform = (_mix(state + _GOLDEN) >> 33) & 0x7FFFFFFF
    choice = (uniform * is_positive.sum(1)) >> 31
    slot = (is_positive & (is_positive.cumsum(1) == choice[:, None] + 1)).int().argmax(1, keepdim=True)
    return columns.gather(1, slot)


def _mix(state: Int64[Tensor, " rows"]) -> Int64[Tensor, " rows"]:
    """Apply the finaliser of SplitMix64. Int64 products wrap; masking makes the shifts logical."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        state = (state ^ _shift_right(state, shift)) * factor
    return state ^ _shift_right(state, 31)


def _shift_right(state: Int64[Tensor, " rows"], by: int) -> Int64[Tensor, " rows"]:
    return (state >> by) & ((1 << (64 - by)) - 1)


RAND1 = RowLoss("logsumexp", infonce, draw_positive)
