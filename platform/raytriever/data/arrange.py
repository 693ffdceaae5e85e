"""The order that the settings ask for: shuffled, mixed, spread."""

from __future__ import annotations

import numpy as np

from raytriever.data.dataset import Positives
from raytriever.data.draws import derived_seed
from raytriever.data.examples import Examples
from raytriever.data.mixture import Mixture, parse_weights
from raytriever.data.order import Order, Shuffled, Stream
from raytriever.data.spread import Spread

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
    """The order of a split's examples.

    Args:
        examples: of one data set, or of several in one.
        batch_size: examples in the global batch, over all workers.
        seed: another seed, another order.
        weights: of the data sets, see `mixture.parse_weights`; their sizes when empty.
        mixing: `examples` mixes data sets within each batch, `batches` takes each batch from one.
        no_duplicates: whether batches are to be without two queries that share a positive, see `spread`.

    Raises:
        ConfigError: weights that do not fit the data sets.
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
            rows = slice(int(examples.starts[part]), int(examples.starts[part + 1]))
            stream = Spread(stream, batch_size, _part(examples.positives, rows), own)
        streams.append(stream)
    turn = batch_size if by_batch else 1
    whole = streams[0] if alone else Mixture(streams, [shares[part] for part in parts], seed, turn)
    if no_duplicates and not by_batch:
        whole = Spread(whole, batch_size, examples.positives, seed)
    return Order(len(examples), batch_size, seed, whole)


def _part(positives: Positives, queries: slice) -> Positives:
    """The queries of one data set with their positives."""
    offsets = positives.offsets[queries.start : queries.stop + 1]
    rows = slice(int(offsets[0]), int(offsets[-1]))
    columns = (column[rows] for column in (positives.documents, positives.sources, positives.ranks))
    return Positives(positives.queries[queries], offsets - offsets[0], *columns)
