"""Order of the training examples by the settings: shuffled, mixed from several data sets by weights, spread.

1. Each data set has an endless stream of its own. A round of the mixture has as many slots as all data sets have
   examples. It assigns each turn (one slot, or one batch of slots) to a data set: quotas, shuffled by (seed, round).
2. After r rounds every data set has had its share of all turns, rounded to an integer. The quotas come from an
   apportionment that never takes a turn back (Webster 1832, Sainte-Laguë 1910). Those of round r are the difference of
   two apportionments, so nothing has to be replayed.
3. The k-th turn of a data set reads the k-th slot (or batch) of its own stream. So each example occurs once in each
   epoch of its data set, with any weights. The default weights are the sizes; then all epochs end together."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm

import numpy as np

from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Epoch, Order, Shuffled, Stream, derived_seed, permutation, read
from raytriever.data.sampling.spread import Spread
from raytriever.errors import ConfigError, setting

_FLAG = setting("dataset_weights")


class Mixture:
    """Stream (`order.Stream`) of the streams of several data sets, whose examples count from 0.

    `run` is the number of slots of a turn: 1, or the batch size for batches of one data set each.
    """

    def __init__(self, streams: Sequence[Stream], weights: Sequence[int], seed: int, run: int = 1) -> None:
        self._streams, self._weights, self._seed, self._run = tuple(streams), tuple(weights), seed, run
        self._turns = -(-sum(stream.size for stream in streams) // run)
        self.epoch = lru_cache(maxsize=2)(self._round)

    @property
    def size(self) -> int:
        """Number of slots of a round: all examples, rounded up to whole turns."""
        return self._turns * self._run

    def _round(self, number: int) -> Epoch:
        """Return a round; see `order.Stream`. Two rounds are cached."""
        before, after = (apportion(self._weights, (number + more) * self._turns) for more in (0, 1))
        owners = np.repeat(np.arange(len(self._streams)), np.subtract(after, before))
        turns = owners[permutation(self._turns, self._seed, number)]
        examples, seen_in = (np.empty((self._turns, self._run), dtype=np.int64) for _ in range(2))
        start = 0
        for part, stream in enumerate(self._streams):
            mine = turns == part
            section = read(stream, before[part] * self._run, after[part] * self._run)
            examples[mine] = section.examples.reshape(-1, self._run) + start
            seen_in[mine] = section.seen_in.reshape(-1, self._run)
            start += stream.size
        for column in (examples, seen_in):
            column.setflags(write=False)
        return Epoch(examples.reshape(-1), seen_in.reshape(-1))


def parse_weights(text: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Parse weights such as `2,1` or `0.7,0.3` into integers, one for each data set; the sizes for "".

    Raises:
        ConfigError: the number of weights differs from the number of data sets, a weight is not above 0, or a data set
            with a weight has no examples.
    """
    if not text.strip():
        return tuple(sizes)
    words = [word.strip() for word in text.split(",")]
    if len(words) != len(sizes):
        raise ConfigError(f"{text!r} is {len(words)} for {len(sizes)} data sets", _FLAG, "give one for each, as in 2,1")
    fractions = []
    for word, size in zip(words, sizes, strict=True):
        try:
            weight = Fraction(word)
        except (ValueError, ZeroDivisionError):
            weight = Fraction(0)
        if weight <= 0:
            raise ConfigError(f"{word!r} is no weight", _FLAG, "give numbers above 0, as in 2,1")
        if not size:
            raise ConfigError(f"weight {word} is of a data set without training examples", _FLAG, "leave it out")
        fractions.append(weight)
    whole = lcm(*(weight.denominator for weight in fractions))
    return tuple(int(weight * whole) for weight in fractions)


def apportion(weights: Sequence[int], turns: int) -> list[int]:
    """Apportion `turns` by weights (Webster, Sainte-Laguë): with more turns no data set has fewer.

    The result is the first `turns` of one endless ranking of claims: w / (2k + 1) is the claim of weight w to its k-th
    turn; of equal claims the earlier data set is first. The count starts at the rounded shares and needs at most one
    step for each data set.
    """
    total = sum(weights)
    # Shares rounded, halves down: all claims above one threshold.
    had = [(2 * turns * weight + total - 1) // (2 * total) for weight in weights]
    while sum(had) < turns:
        claims = [Fraction(weight, 2 * count + 1) for weight, count in zip(weights, had, strict=True)]
        had[max(range(len(had)), key=lambda part: (claims[part], -part))] += 1
    while sum(had) > turns:
        quotients = [
            Fraction(weight, 2 * count - 1) if count else None for weight, count in zip(weights, had, strict=True)
        ]
        had[-min((claim, -part) for part, claim in enumerate(quotients) if claim is not None)[1]] -= 1
    return had


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
    """Return the order of a split's examples, of one data set or of several combined.

    Args:
        batch_size: number of examples in the global batch, over all workers.
        weights: weights of the data sets, see `parse_weights`; "" for their sizes.
        mixing: `examples` mixes data sets within each batch, `batches` reads each batch from one data set.
        no_duplicates: avoid batches with two queries that share a positive, see `spread`.
    """
    sizes = np.diff(examples.starts).tolist()
    shares = parse_weights(weights, sizes)
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
    whole = streams[0] if alone else Mixture(streams, [shares[part] for part in parts], seed, turn)
    if no_duplicates and not by_batch:
        whole = Spread(whole, batch_size, examples.positives)
    return Order(len(examples), batch_size, seed, whole)
