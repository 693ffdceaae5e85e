"""Which examples make up the batch of step t: a pure function of (examples, batch size, seed, t).

1. A stream is endless: epochs of equal size laid end to end, each computed from its number alone. The plain one is a
   permutation an epoch; `mixture` and `spread` make others.
2. Step t takes positions tb to tb + b - 1 of the stream, whatever the number of workers; each takes its share.
3. So the last batch of an epoch is filled from the next one: nothing is dropped, nothing is padded, every example
   comes once an epoch, and to go on at any step costs one epoch's order, or two where the batch straddles them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.sampling.draws import permutation
from raytriever.errors import ConfigError


class Epoch(NamedTuple):
    """The places of an epoch of a stream: which example, and in which of its own epochs it is seen there."""

    examples: Int64[ndarray, " places"]
    seen_in: Int64[ndarray, " places"]


class Stream(Protocol):
    """Epochs of `size` places each, laid end to end."""

    @property
    def size(self) -> int:
        """The places of an epoch."""

    def epoch(self, number: int) -> Epoch:
        """Epoch `number`, counted from 0; the same whatever was asked before, read-only."""


@dataclass(frozen=True)
class Shuffled:
    """Another permutation of `size` examples each epoch."""

    size: int
    seed: int

    def epoch(self, number: int) -> Epoch:
        """See `Stream`."""
        return Epoch(permutation(self.size, self.seed, number), np.broadcast_to(np.int64(number), self.size))


@dataclass(frozen=True)
class Order:
    """The order of training.

    Args:
        examples: how many examples an epoch has.
        batch_size: examples in the global batch, over all workers.
        seed: another seed, another order.
        stream: what is read, see `arrange`; `Shuffled` when not given.
    """

    examples: int
    batch_size: int
    seed: int
    stream: Stream | None = None

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ConfigError("there is no training example", remedy="give a split with judgements above 0")
        if self.batch_size < 1:
            raise ConfigError(f"{self.batch_size} is out of range", "--batch-size", "give at least 1")

    def batch(self, step: int) -> Int64[ndarray, " batch"]:
        """The example indices of step `step`, counted from 0."""
        return self._read(step).examples

    def epochs(self, step: int) -> Int64[ndarray, " batch"]:
        """The epoch, counted from 0, that each example of the step's batch is seen in: of several data sets, the
        example's own."""
        return self._read(step).seen_in

    def steps(self, epochs: float) -> int:
        """Steps after which as many examples were seen as `epochs` epochs have; the last may run into the next."""
        return int(np.ceil(epochs * self.examples / self.batch_size))

    def _read(self, step: int) -> Epoch:
        start = step * self.batch_size
        return read(self._stream, start, start + self.batch_size)

    @cached_property
    def _stream(self) -> Stream:
        return self.stream or Shuffled(self.examples, self.seed)


def read(stream: Stream, start: int, stop: int) -> Epoch:
    """Positions `start` to `stop - 1` of a stream."""
    examples, seen_in = np.empty(stop - start, dtype=np.int64), np.empty(stop - start, dtype=np.int64)
    at = start
    while at < stop:
        number, place = divmod(at, stream.size)
        count = min(stop - at, stream.size - place)
        epoch = stream.epoch(number)
        here = slice(at - start, at - start + count)
        examples[here] = epoch.examples[place : place + count]
        seen_in[here] = epoch.seen_in[place : place + count]
        at += count
    return Epoch(examples, seen_in)


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
