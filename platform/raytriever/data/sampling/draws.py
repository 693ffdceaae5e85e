"""Random choices as pure functions of what they are for: no state, so nothing that a restart could lose.

numpy promises that the raw words of its generators stay as they are and promises nothing of the kind for shuffles
and samples; so everything here is built from words: of Philox (Salmon et al. 2011) where a whole epoch is drawn, of
splitmix64 (Steele et al. 2014) where a few numbers an example are.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

WORD = 2**64 - 1


@lru_cache(maxsize=2)
def permutation(size: int, seed: int, epoch: int) -> Int64[ndarray, " size"]:
    """An order of `size` things, another for each (seed, epoch). Two are kept, for the batch that straddles them."""
    key = np.array([seed & WORD, epoch & WORD], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.setflags(write=False)
    return order


def words(
    seed: int, epochs: ndarray, examples: ndarray, purpose: int, columns: ndarray | None = None
) -> UInt64[ndarray, "..."]:
    """splitmix64 over the arguments one after another.

    Args:
        seed: any whole number.
        epochs: one an example.
        examples: `[batch]`.
        purpose: what is drawn: one example's draws for two purposes must not repeat each other.
        columns: the numbers of the draws of each example.

    Returns:
        A word for each example, `[batch]`, or where `columns` are given, for each of them too, `[batch, columns]`.
    """
    state = _mix(np.full(len(examples), seed & WORD, dtype=np.uint64) + np.uint64(purpose))
    state = _mix(state ^ np.asarray(epochs).astype(np.uint64))
    state = _mix(state ^ np.asarray(examples).astype(np.uint64))
    if columns is None:
        return state
    return _mix(state[:, None] ^ columns.astype(np.uint64)[None, :])


def derived_seed(seed: int, number: int) -> int:
    """A seed for part `number` of what `seed` is for, so that the parts are drawn independently."""
    return int(_mix(_mix(np.array([seed & WORD], dtype=np.uint64)) ^ np.uint64(number + 1))[0])


def _mix(state: ndarray) -> ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
