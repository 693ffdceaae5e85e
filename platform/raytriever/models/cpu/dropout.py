"""Dropout by a key (Srivastava et al. 2014): no mask is stored, because the backward pass computes it again.

A call draws one key from torch's CPU generator. An element is kept or dropped by 16 of the bits that SplitMix64
(Steele, Lea & Flood 2014, OOPSLA) computes from the key and the element's index. If the generator is restored, as
gradient caching and activation checkpointing do, the mask is the same. torch's own dropout on a CPU draws from one
serial generator: 8 ns per element, a third of a training step of MiniLM in bf16. This dropout takes 0.1 to 0.3 ns on
one thread. On other devices, and for types other than float32 and bfloat16, torch's own dropout is used.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

BLOCK = 1024
WORDS = BLOCK // 4  # a random word serves four elements
LEVELS = 1 << 16  # probabilities are multiples of 1 / LEVELS


@numba.njit(cache=True, error_model="numpy", nogil=True)
def drop_float32(values, dropped, key, threshold, scale):  # type: ignore[no-untyped-def]
    """Write `values * scale`, or 0 where 16 random bits are below `threshold`; `dropped` may be `values`."""
    words, factors = np.empty(WORDS, np.uint64), np.empty(BLOCK, np.float32)
    for block in range((values.size + BLOCK - 1) // BLOCK):
        start, end = block * BLOCK, min(values.size, (block + 1) * BLOCK)
        draw_factors(factors, end - start, words, key, block * WORDS, threshold, scale)
        for i in range(end - start):
            dropped[start + i] = values[start + i] * factors[i]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def drop_bfloat16(values, dropped, key, threshold, scale):  # type: ignore[no-untyped-def]
    """Drop elements of bfloat16, viewed as uint16; products are in float32, rounded to nearest, ties to even."""
    words = np.empty(WORDS, np.uint64)
    random = words.view(np.uint16)
    wide = np.empty(BLOCK, np.uint32)
    product = wide.view(np.float32)
    for block in range((values.size + BLOCK - 1) // BLOCK):
        _draw(words, WORDS, key, block * WORDS)
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
def draw_factors(factors, count, words, key, first, threshold, scale):  # type: ignore[no-untyped-def]
    """Write `scale` for each element that is kept and 0 for the others.

    Args:
        factors: Factors of the elements, at least `count`.
        words: buffer of a quarter of as many random words.
        key: key of the mask, uint64.
        first: number of the first word; a word serves four elements.
        threshold: elements with 16 random bits below it are dropped, uint16.
        scale: factor of the others.
    """
    _draw(words, (count + 3) // 4, key, first)
    random = words.view(np.uint16)
    for i in range(count):  # not multiplied here: the compiler vectorises each of two loops, but not a combined one
        factors[i] = scale if random[i] >= threshold else np.float32(0)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _draw(words, count, key, first):  # type: ignore[no-untyped-def]
    """Compute `count` random words from the number `first` on."""
    for i in range(count):
        word = key + np.uint64(first + i) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[i] = word ^ (word >> np.uint64(31))


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with probabilities in steps of 2^-16; kept elements are scaled so that means stay the same."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements while training."""
        return dropout(input, self.p, self.training)


def dropout(values: Tensor, probability: float, training: bool = True) -> Tensor:
    """Set elements to 0 with a probability, and divide the others by the probability of being kept.

    The probability, from 0 to 1, is rounded to a multiple of 2^-16 on a CPU.
    """
    if not training or probability == 0:
        return values
    if not drops_by_key(values):
        return nn.functional.dropout(values, probability, training)
    dropped: Tensor = _Drop.apply(values, probability, draw_key())
    return dropped


def drops_by_key(values: Tensor) -> bool:
    """Return true if `drop` supports the device and the type of a tensor."""
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.bfloat16)


def draw_key() -> int:
    """Draw 63 bits from torch's CPU generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def drop(values: Tensor, probability: float, key: int, in_place: bool = False) -> Tensor:
    """Drop elements by a key and scale the others, without autograd; the mask is the same for any type.

    Args:
        values: float32 or bfloat16 tensor on a CPU.
        key: see `draw_key`.
        in_place: overwrite `values` if it is contiguous.
    """
    threshold = round(probability * LEVELS)
    if threshold == LEVELS:
        return torch.zeros_like(values)
    values = values.contiguous()
    dropped = values if in_place else torch.empty_like(values)
    if values.dtype == torch.bfloat16:
        compiled, views = drop_bfloat16, (values.view(torch.uint16), dropped.view(torch.uint16))
    else:
        compiled, views = drop_float32, (values, dropped)
    source, target = (one.detach().numpy().reshape(-1) for one in views)
    compiled(source, target, np.uint64(key), np.uint16(threshold), np.float32(LEVELS / (LEVELS - threshold)))
    return dropped


class _Drop(torch.autograd.Function):
    """Dropout whose backward pass applies the same mask."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float, key: int) -> Tensor:
        ctx.probability, ctx.key = probability, key
        return drop(values, probability, key)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return drop(grad, ctx.probability, ctx.key), None, None
