"""Dropout (Srivastava et al. 2014) that costs next to nothing on a CPU and keeps no mask for the backward pass.

A call draws one key from torch's generator of the processor; the mask is a function of that key and of an element's
place. Whoever puts the generator back, as gradient caching and activation checkpointing do, gets the same masks.
Elsewhere than on a CPU, and in other types than float32 and bfloat16, torch's own dropout is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raytriever.models.dropout_compiled import LEVELS, drop_bfloat16, drop_float32


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with probabilities in steps of 2^-16; what is kept is scaled so that means stay."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements while training."""
        return dropout(input, self.p, self.training)


def dropout(values: Tensor, probability: float, training: bool = True) -> Tensor:
    """Elements set to 0 with a probability, the others divided by the probability of being kept.

    Args:
        values: of any shape.
        probability: from 0 to 1, rounded to a multiple of 2^-16 on a CPU.
        training: elements are dropped in training only.
    """
    if not training or probability == 0:
        return values
    if not drops_by_key(values):
        return nn.functional.dropout(values, probability, training)
    dropped: Tensor = _Drop.apply(values, probability, draw_key())
    return dropped


def drops_by_key(values: Tensor) -> bool:
    """Whether `drop` knows the device and the type."""
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.bfloat16)


def draw_key() -> int:
    """63 bits of torch's generator of the processor."""
    return int(torch.empty((), dtype=torch.int64).random_())


def drop(values: Tensor, probability: float, key: int, in_place: bool = False) -> Tensor:
    """Without autograd: the elements that a key keeps, scaled; the same mask for any type, and for gradients.

    `in_place`, what is contiguous is overwritten.
    """
    threshold = round(probability * LEVELS)
    if threshold == LEVELS:
        return torch.zeros_like(values)
    values = values.contiguous()
    dropped = values if in_place else torch.empty_like(values)
    if values.dtype == torch.bfloat16:
        compiled, seen = drop_bfloat16, (values.view(torch.uint16), dropped.view(torch.uint16))
    else:
        compiled, seen = drop_float32, (values, dropped)
    source, target = (one.detach().numpy().reshape(-1) for one in seen)
    compiled(source, target, np.uint64(key), np.uint16(threshold), np.float32(LEVELS / (LEVELS - threshold)))
    return dropped


class _Drop(torch.autograd.Function):
    """The derivative is the mask itself."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float, key: int) -> Tensor:
        ctx.probability, ctx.key = probability, key
        return drop(values, probability, key)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return drop(grad, ctx.probability, ctx.key), None, None
