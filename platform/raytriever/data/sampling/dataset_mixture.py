"""Order of the training examples: shuffled, mixed from several data sets by weight, or without duplicates in a batch.

1. Each data set has its own endless stream. A round of the mixture has about as many slots as all data sets have
   examples. It consists of turns of one slot, or of one batch of slots. Each turn belongs to one data set.
2. A data set has the same number of turns in each round: its fraction by weight, rounded, at least one. (seed, round)
   determines the turns' order. The k-th turn of a data set reads the k-th slot (or batch) of its own stream. So each
   example occurs once per epoch of its data set. By default, sizes are the weights; then all epochs end together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from raytriever.core.errors import ConfigError, setting
from raytriever.data.sampling.batch_order import Epoch, Order, Shuffled, Stream, derived_seed, permutation, read
from raytriever.data.sampling.no_duplicates import Spread
from raytriever.data.sampling.training_examples import Examples

_FLAG = setting("dataset_weights")


class Mixture:
    """Stream that mixes the streams of several data sets. Indices of examples continue from one data set to the next.
    `run` is the number of slots of a turn: 1, or the batch size if each batch is from one data set."""

    def __init__(self, streams: Sequence[Stream], weights: Sequence[float], seed: int, run: int = 1) -> None:
        self._streams, self._seed, self._run = tuple(streams), seed, run
        turns = -(-sum(stream.size for stream in streams) // run)
        self._quotas = [max(1, round(weight * turns / sum(weights))) for weight in weights]
        self.epoch = lru_cache(maxsize=2)(self._round)

    @property
    def size(self) -> int:
        """Number of slots of a round."""
        return sum(self._quotas) * self._run

    def _round(self, number: int) -> Epoch:
        owners = np.repeat(np.arange(len(self._streams)), self._quotas)
        turns = owners[permutation(len(owners), self._seed, number)]
        examples, seen_in = (np.empty((len(owners), self._run), dtype=np.int64) for _ in range(2))
        start = 0
        for part, (stream, quota) in enumerate(zip(self._streams, self._quotas, strict=True)):
            mine = turns == part
            section = read(stream, number * quota * self._run, (number + 1) * quota * self._run)
            examples[mine] = section.examples.reshape(-1, self._run) + start
            seen_in[mine] = section.seen_in.reshape(-1, self._run)
            start += stream.size
        for column in (examples, seen_in):
            column.setflags(write=False)
        return Epoch(examples.reshape(-1), seen_in.reshape(-1))


def parse_weights(text: str, sizes: Sequence[int]) -> tuple[float, ...]:
    """Parse weights such as `2,1` or `0.7,0.3`, one for each data set. For an empty text, the sizes are the weights.
    Raise `ConfigError` if the number of weights differs from the number of data sets, a weight is not above 0, or a
    data set with a weight has no examples."""
    if not text.strip():
        return tuple(sizes)
    words = [word.strip() for word in text.split(",")]
    if len(words) != len(sizes):
        what = f"{len(sizes)} data sets need {len(sizes)} weights, but {text!r} has {len(words)}"
        raise ConfigError(what, _FLAG, "give one weight for each, as in 2,1")
    weights = []
    for word, size in zip(words, sizes, strict=True):
        try:
            weight = float(word)
        except ValueError:
            weight = 0.0
        if not 0 < weight < 1e100:  # the comparison is also false for NaN
            raise ConfigError(f"{word!r} is not a weight", _FLAG, "give numbers above 0, as in 2,1")
        if not size:
            raise ConfigError(f"weight {word} is for a data set without training examples", _FLAG, "remove both")
        weights.append(weight)
    return tuple(weights)


EXAMPLES, BATCHES = "examples", "batches"


def arrange(
    examples: Examples,
    batch_size: int,
    seed: int,
    *,
    weights: str = "",
    mixing: str = EXAMPLES,
    no_duplicates: bool = False,
) -> Order:
    """Return the order of the examples of a split, for one data set or a combined one.

    Args:
        batch_size: number of examples in the global batch, over all workers.
        weights: weights of the data sets, see `parse_weights`; "" for the sizes of the data sets.
        mixing: `examples` mixes data sets within each batch, `batches` reads each batch from one data set.
        no_duplicates: avoid batches with two queries that share a positive, see `Spread`.
    """
    sizes = np.diff(examples.starts).tolist()
    fractions = parse_weights(weights, sizes)
    parts = [part for part, size in enumerate(sizes) if size]
    alone = len(parts) == 1
    by_batch = mixing == BATCHES and not alone
    streams: list[Stream] = []
    for part in parts:
        own = seed if alone else derived_seed(seed, part)
        stream: Stream = Shuffled(sizes[part], own)
        if no_duplicates and by_batch:
            numbers = np.arange(len(examples))
            mine = (numbers >= examples.starts[part]) & (numbers < examples.starts[part + 1])
            stream = Spread(stream, batch_size, examples.positives.where(mine))
        streams.append(stream)
    turn = batch_size if by_batch else 1
    whole = streams[0] if alone else Mixture(streams, [fractions[part] for part in parts], seed, turn)
    if no_duplicates and not by_batch:
        whole = Spread(whole, batch_size, examples.positives)
    return Order(len(examples), batch_size, seed, whole)
