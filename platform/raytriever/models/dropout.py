"""Dropout (Srivastava et al. 2014) for training on a CPU: one compiled pass that keeps no mask for the backward pass.

A call draws one key from torch's CPU generator. An element is kept or dropped by 16 of the bits that SplitMix64
(Steele, Lea & Flood 2014, OOPSLA) makes of the key and the element's index, so the backward pass draws the same bits
again. If the generator is restored, as gradient caching and activation checkpointing do, the mask is the same.

torch's own dropout on a CPU draws from one serial generator: 8 ns an element, a third of a training step of MiniLM in
bf16; here it is 0.1 to 0.3 ns. One thread is enough for that. On other devices, and for other types than float32 and
bfloat16, torch's own dropout is used."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

BLOCK = 1024
WORDS = BLOCK // 4  # four elements a random word
LEVELS = 1 << 16  # probabilities are told apart to 1 / LEVELS


@numba.njit(cache=True, error_model="numpy", nogil=True)
def drop_float32(values, dropped, key, threshold, scale):  # type: ignore[no-untyped-def]
    """Write `values * scale`, or 0 where 16 random bits are below `threshold`; `dropped` may be `values`."""
    words = np.empty(WORDS, np.uint64)
    random = words.view(np.uint16)
    factors = np.empty(BLOCK, np.float32)
    for block in range((values.size + BLOCK - 1) // BLOCK):
        _draw(words, key, block)
        start, end = block * BLOCK, min(values.size, (block + 1) * BLOCK)
        # Two loops, each of which is compiled to vectors; as one they are not.
        for i in range(end - start):
            factors[i] = scale if random[i] >= threshold else np.float32(0)
        for i in range(end - start):
            dropped[start + i] = values[start + i] * factors[i]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def drop_bfloat16(values, dropped, key, threshold, scale):  # type: ignore[no-untyped-def]
    """The same for bfloat16, seen as uint16: multiplied in float32, rounded to the nearest, to even between two."""
    words = np.empty(WORDS, np.uint64)
    random = words.view(np.uint16)
    wide = np.empty(BLOCK, np.uint32)
    product = wide.view(np.float32)
    for block in range((values.size + BLOCK - 1) // BLOCK):
        _draw(words, key, block)
        start, end = block * BLOCK, min(values.size, (block + 1) * BLOCK)
        for i in range(end - start):
            wide[i] = np.uint32(values[start + i]) << np.uint32(16)
        for i in range(end - start):
            product[i] *= scale
        for i in range(end - start):
            odd = (wide[i] >> np.uint32(16)) & np.uint32(1)
            rounded = (wide[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16)
            dropped[start + i] = np.uint16(rounded) if random[i] >= threshold else np.uint16(0)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _draw(words, key, block):  # type: ignore[no-untyped-def]
    """The random words of a block."""
    for i in range(words.size):
        word = key + np.uint64(block * words.size + i) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[i] = word ^ (word >> np.uint64(31))


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
