"""Which examples make up the batch of step t: a pure function of (examples, batch size, seed, t).

1. Epoch e is a permutation drawn from a Philox generator keyed by (seed, e) (Salmon et al. 2011).
2. The epochs, laid end to end, are one endless stream of positions; step t takes positions tb to tb + b - 1.
3. So a batch may straddle two epochs, nothing is dropped or padded; resuming anywhere costs one permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.errors import ConfigError

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Order:
    """The order of training.

    Args:
        examples: how many examples an epoch has.
        batch_size: examples in the global batch, over all workers.
        seed: another seed, another order.
    """

    examples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ConfigError("there is no training example", remedy="give a split with judgements above 0")
        if self.batch_size < 1:
            raise ConfigError(f"{self.batch_size} is out of range", "--batch-size", "give at least 1")

    def batch(self, step: int) -> Int64[ndarray, " batch"]:
        """The example indices of step `step`, counted from 0."""
        positions = self._positions(step)
        epochs, places = np.divmod(positions, self.examples)
        found = np.empty(self.batch_size, dtype=np.int64)
        for epoch in range(epochs[0], epochs[-1] + 1):
            of_epoch = epochs == epoch
            found[of_epoch] = permutation(self.examples, self.seed, epoch)[places[of_epoch]]
        return found

    def epochs(self, step: int) -> Int64[ndarray, " batch"]:
        """The epoch, counted from 0, that each example of the step's batch is seen in."""
        return self._positions(step) // self.examples

    def steps(self, epochs: float) -> int:
        """Steps after which every example was seen `epochs` times; the last may run into the next epoch."""
        return int(np.ceil(epochs * self.examples / self.batch_size))

    def _positions(self, step: int) -> Int64[ndarray, " batch"]:
        return np.int64(step) * self.batch_size + np.arange(self.batch_size, dtype=np.int64)


@lru_cache(maxsize=2)
def permutation(examples: int, seed: int, epoch: int) -> Int64[ndarray, " examples"]:
    """The order of one epoch. Two are kept, for the batch that straddles them.

    Sorting raw words rather than `Generator.permutation`: numpy promises that the words of Philox stay,
    and promises nothing of the kind for its shuffles.
    """
    key = np.array([seed & _WORD, epoch & _WORD], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(examples), kind="stable")
    order.setflags(write=False)
    return order


def worker_slice(batch: Int64[ndarray, " batch"], rank: int, size: int) -> Int64[ndarray, " local"]:
    """The contiguous share of worker `rank` of `size`; raises `ConfigError` if the shares are not equal."""
    if len(batch) % size:
        raise ConfigError(
            f"{len(batch)} does not divide by {size} workers",
            "--batch-size",
            f"give a multiple of {size}, such as {-(-len(batch) // size) * size}, or another --num-workers",
        )
    local = len(batch) // size
    return batch[rank * local : (rank + 1) * local]
