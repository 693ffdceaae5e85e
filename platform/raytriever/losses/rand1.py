"""Rand1LH: InfoNCE on one positive drawn anew at every step (multi-positive paper, Eq. 5).

The draw is a function of (seed, step, query id) alone, so it does not depend on the number of workers, on
the place of the query in the batch or on what was drawn before.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from raytriever.losses.engine.batch import PAD, BatchIds
from raytriever.losses.engine.rows import RowLoss
from raytriever.losses.infonce import infonce

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def drawn_positive(columns: Int64[Tensor, "rows positives"], ids: BatchIds) -> Int64[Tensor, "rows one"]:
    """One of each query's positives, each equally likely."""
    held = columns != PAD
    state = torch.full_like(ids.queries, ids.seed)
    for word in (torch.full_like(ids.queries, ids.step), ids.queries):
        state = _scrambled(state + _GOLDEN) ^ word
    # 31 bits times a count of at most 2^31 stays within 63.
    uniform = (_scrambled(state + _GOLDEN) >> 33) & 0x7FFFFFFF
    chosen = (uniform * held.sum(1)) >> 31
    place = (held & (held.cumsum(1) == chosen[:, None] + 1)).int().argmax(1, keepdim=True)
    return columns.gather(1, place)


def _scrambled(state: Int64[Tensor, " rows"]) -> Int64[Tensor, " rows"]:
    """The finaliser of SplitMix64; Int64 products wrap, and shifts are made logical by masking."""
    for shift, factor in zip((30, 27), _MIX, strict=True):
        state = (state ^ _shifted(state, shift)) * factor
    return state ^ _shifted(state, 31)


def _shifted(state: Int64[Tensor, " rows"], by: int) -> Int64[Tensor, " rows"]:
    return (state >> by) & ((1 << (64 - by)) - 1)


RAND1 = RowLoss("logsumexp", infonce, drawn_positive)
