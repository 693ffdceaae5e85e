"""Random choices as pure functions of their purpose: there is no state that a restart could lose.

numpy guarantees that the raw words of its generators do not change, and guarantees nothing for shuffles and samples.
So all draws are made from words: of Philox (Salmon et al. 2011) for a whole epoch, of splitmix64 (Steele et al. 2014)
for a few numbers of each example.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

WORD = 2**64 - 1


@lru_cache(maxsize=2)
def permutation(size: int, seed: int, epoch: int) -> Int64[ndarray, " size"]:
    """Return a permutation of `size` items for each (seed, epoch). Two are cached, for a batch across two epochs."""
    key = np.array([seed & WORD, epoch & WORD], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.setflags(write=False)
    return order


def words(
    seed: int, epochs: ndarray, examples: ndarray, purpose: int, columns: ndarray | None = None
) -> UInt64[ndarray, "..."]:
    """Return splitmix64 over the arguments, one after another.

    Args:
        seed: any integer.
        epochs: epoch of each example, `[batch]`.
        examples: examples, `[batch]`.
        purpose: number of the purpose: draws of one example for two purposes must be independent.
        columns: numbers of the draws of each example.

    Returns:
        A word for each example, `[batch]`, or with `columns` for each draw, `[batch, columns]`.
    """
    state = _mix(np.full(len(examples), seed & WORD, dtype=np.uint64) + np.uint64(purpose))
    state = _mix(state ^ np.asarray(epochs).astype(np.uint64))
    state = _mix(state ^ np.asarray(examples).astype(np.uint64))
    if columns is None:
        return state
    return _mix(state[:, None] ^ columns.astype(np.uint64)[None, :])


def derived_seed(seed: int, number: int) -> int:
    """Return the seed of part `number`, so that the parts are drawn independently."""
    return int(_mix(_mix(np.array([seed & WORD], dtype=np.uint64)) ^ np.uint64(number + 1))[0])


def _mix(state: ndarray) -> ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
