"""Order of the examples: the batch of step t is a pure function of (examples, batch size, seed, t).

1. A stream is an endless sequence of epochs of equal size. Each is computed from its number alone. The simplest stream
   has one permutation for each epoch; `dataset_mixture` and `no_duplicates` make other streams.
2. Step t reads positions t * b to (t + 1) * b - 1 of the stream, where b is the global batch size. Each worker reads
   its part of these positions.
3. So the last batch of an epoch is filled from the next epoch. No example is dropped or padded, and each occurs one
   time per epoch. To resume, only the order of one epoch is computed, or of two if a batch spans two epochs.

All random choices are pure functions of seed, epoch, example and purpose, so a restart loses no state. NumPy guarantees
that the raw words of its generators never change, but does not guarantee this for shuffles and samples. So all samples
are made from raw words: those of Philox (Salmon et al. 2011) for a whole epoch, those of splitmix64 (Steele et al.
2014) for a few numbers per example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64, UInt64
from numpy import ndarray

from raytriever.core.errors import ConfigError, setting


class Epoch(NamedTuple):
    """Epoch of a stream: for each slot, the example and `seen_in`, the epoch of the example's own data set."""

    examples: Int64[ndarray, " slots"]
    seen_in: Int64[ndarray, " slots"]


class Stream(Protocol):
    """Endless sequence of epochs of `size` slots."""

    @property
    def size(self) -> int:
        """Number of slots of an epoch."""

    def epoch(self, number: int) -> Epoch:
        """Return epoch `number` (from 0) as read-only arrays, independent of earlier calls."""


@dataclass(frozen=True)
class Shuffled:
    """Stream with a different permutation of `size` examples in each epoch."""

    size: int
    seed: int

    def epoch(self, number: int) -> Epoch:
        """See `Stream`."""
        return Epoch(permutation(self.size, self.seed, number), np.broadcast_to(np.int64(number), self.size))


@dataclass(frozen=True)
class Order:
    """Order of the training examples, in global batches over all workers. `stream` is the stream to read,
    see `dataset_mixture.arrange`; `Shuffled` by default."""

    examples: int
    batch_size: int
    seed: int
    stream: Stream | None = None

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ConfigError("there is no training example", remedy="give a split with judgements above 0")
        if self.batch_size < 1:
            raise ConfigError(f"{self.batch_size} is out of range", setting("batch_size"), "give at least 1")

    def batch(self, step: int) -> Int64[ndarray, " batch"]:
        """Return the example indices of step `step` (the first step is 0)."""
        return self._read(step).examples

    def epochs(self, step: int) -> Int64[ndarray, " batch"]:
        """Return the epoch (from 0) of each example in the step's batch. Each data set counts its own epochs."""
        return self._read(step).seen_in

    def steps(self, epochs: float) -> int:
        """Return the number of steps that cover `epochs` epochs; the last step may reach into the next epoch."""
        return int(np.ceil(epochs * self.examples / self.batch_size))

    def _read(self, step: int) -> Epoch:
        start = step * self.batch_size
        return read(self._stream, start, start + self.batch_size)

    @cached_property
    def _stream(self) -> Stream:
        return self.stream or Shuffled(self.examples, self.seed)


def read(stream: Stream, start: int, stop: int) -> Epoch:
    """Return positions `start` to `stop - 1` of a stream."""
    examples, seen_in = np.empty(stop - start, dtype=np.int64), np.empty(stop - start, dtype=np.int64)
    at = start
    while at < stop:
        number, slot = divmod(at, stream.size)
        count = min(stop - at, stream.size - slot)
        epoch = stream.epoch(number)
        rows = slice(at - start, at - start + count)
        examples[rows] = epoch.examples[slot : slot + count]
        seen_in[rows] = epoch.seen_in[slot : slot + count]
        at += count
    return Epoch(examples, seen_in)


def worker_slice(batch: Int64[ndarray, " batch"], rank: int, size: int) -> Int64[ndarray, " local"]:
    """Return the contiguous part of a batch for one worker; raises `ConfigError` if the parts are not equal."""
    if len(batch) % size:
        multiple = f"{size}, such as {-(-len(batch) // size) * size}"
        remedy = f"give a multiple of {multiple}, or another {setting('num_workers')}"
        raise ConfigError(f"{len(batch)} is not divisible by {size} workers", setting("batch_size"), remedy)
    local = len(batch) // size
    return batch[rank * local : (rank + 1) * local]


WORD = 2**64 - 1  # largest 64-bit number; also used as a mask


@lru_cache(maxsize=2)
def permutation(size: int, seed: int, epoch: int) -> Int64[ndarray, " size"]:
    """Return the permutation of `size` items for (seed, epoch). Two are cached, because a batch may span two epochs."""
    key = np.array([seed & WORD, epoch & WORD], dtype=np.uint64)
    order = np.argsort(np.random.Philox(key=key).random_raw(size), kind="stable")
    order.setflags(write=False)
    return order


def words(
    seed: int, epochs: ndarray, examples: ndarray, purpose: int, columns: ndarray | None = None
) -> UInt64[ndarray, "..."]:
    """Return 64-bit random words by splitmix64 of the arguments: `[batch]`, or `[batch, columns]` with `columns`.

    Args:
        epochs, examples: `[batch]`.
        purpose: number of the purpose. Samples of an example for different purposes are independent.
        columns: numbers of the samples of each example; None for one sample.
    """
    state = _mix(np.full(len(examples), seed & WORD, dtype=np.uint64) + np.uint64(purpose))
    state = _mix(state ^ np.asarray(epochs).astype(np.uint64))
    state = _mix(state ^ np.asarray(examples).astype(np.uint64))
    return state if columns is None else _mix(state[:, None] ^ columns.astype(np.uint64)[None, :])


def derived_seed(seed: int, number: int) -> int:
    """Derive an independent seed for stream `number`."""
    return int(_mix(_mix(np.array([seed & WORD], dtype=np.uint64)) ^ np.uint64(number + 1))[0])


def _mix(state: ndarray) -> ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
