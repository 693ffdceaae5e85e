"""Batches without two queries that share a positive, out of any stream, each epoch still whole.

1. Batches are windows of b places over the endless stream, so epoch e begins (eN) mod b places into a window.
2. The places of epoch e in its last window, which the next epoch fills up, are chosen first, from epoch e alone: from
   its end, such as share no document. So the next epoch knows what its first window holds, and nothing goes back
   further: any epoch's order costs that of two epochs of the stream.
3. The rest goes, in the order of the stream, each to the first window with room and none of its documents. Those with
   a document of more than a quarter as many queries as there are windows choose before all others, the most frequent
   first, from a drawn window on: they are the ones that need them all.
4. What is left over at the end is exchanged with places of other windows. What cannot be: a document with more queries
   than windows has two in one, and where an epoch is of two or three windows, the ends that were chosen without regard
   to the next epoch can cost a few more. Such places are put anyhow and counted (`shared`).

Documents count for a query whether its group draws them or not: they would be its false negatives all the same.
The work grows with the number of positives, times the length of chains that are all but constant (`spread_compiled`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import Positives
from raytriever.data.draws import words
from raytriever.data.order import Epoch, Order, Stream
from raytriever.data.spread_compiled import choose_apart, count_shared, place_all


class Spread:
    """A stream (`order.Stream`): the epochs of another, rearranged for one batch size.

    An epoch smaller than a batch is left as it is: each batch holds some query twice.

    Args:
        stream: what is rearranged.
        batch_size: places of a window.
        positives: the relevant documents of each example.
        seed: another seed, another arrangement.
    """

    def __init__(self, stream: Stream, batch_size: int, positives: Positives, seed: int) -> None:
        self._stream, self._batch, self._seed = stream, batch_size, seed
        self._offsets, self._documents, self._distinct = _compact(positives)
        self.epoch = lru_cache(maxsize=2)(self._arranged)
        self._parted = lru_cache(maxsize=2)(self._part)
        self.steps = 0  # of the compiled walk, for the last epoch that was arranged

    @property
    def size(self) -> int:
        """The places of an epoch."""
        return self._stream.size

    def _arranged(self, number: int) -> Epoch:
        """See `order.Stream`; two epochs are kept."""
        epoch = self._stream.epoch(number)
        if self.size < self._batch:
            return epoch
        last = self._parted(number)
        rest, tail = np.flatnonzero(~last), np.flatnonzero(last)
        head = self._head(number)
        windows = (len(rest) + len(head)) // self._batch
        chooses, begins = self._choosers(epoch.examples[rest], windows, number)
        taken, self.steps = place_all(
            self._offsets,
            self._documents,
            self._distinct,
            epoch.examples[rest[chooses]],
            begins,
            head,
            self._batch,
            windows,
        )
        places = np.concatenate([rest[chooses[taken]], tail])
        found = Epoch(epoch.examples[places], epoch.seen_in[places])
        for column in found:
            column.setflags(write=False)
        return found

    def _part(self, number: int) -> ndarray:
        """Which places of the stream's epoch are put into its last, straddling window."""
        count = (number + 1) * self.size % self._batch
        return choose_apart(self._offsets, self._documents, self._distinct, self._stream.epoch(number).examples, count)

    def _head(self, number: int) -> Int64[ndarray, " places"]:
        """The examples of the epoch before in the first window of this one, in their order."""
        count = number * self.size % self._batch
        if not count:
            return np.zeros(0, dtype=np.int64)
        return self._stream.epoch(number - 1).examples[self._parted(number - 1)]

    def _choosers(self, examples: ndarray, windows: int, number: int) -> tuple[ndarray, ndarray]:
        """The order in which examples choose, and the window each begins at."""
        starts, counts = self._offsets[examples], np.diff(self._offsets)[examples]
        inner = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        documents = self._documents[np.repeat(starts, counts) + inner]
        queries = np.bincount(documents, minlength=self._distinct)[documents]
        most = np.maximum.reduceat(queries, np.cumsum(counts) - counts)
        first = np.flatnonzero(4 * most > windows)
        first = first[np.argsort(-most[first], kind="stable")]
        others = np.flatnonzero(4 * most <= windows)
        begins = np.zeros(len(examples), dtype=np.int64)
        epochs = np.broadcast_to(np.int64(number), len(first))
        drawn = words(self._seed, epochs, first, 0) % np.uint64(windows)
        begins[: len(first)] = drawn.astype(np.int64)
        return np.concatenate([first, others]), begins


def shared(order: Order, positives: Positives, steps: range) -> int:
    """How many queries of these steps share a positive with an earlier one of their batch, whatever the order."""
    if not steps:
        return 0
    items = np.concatenate([order.batch(step) for step in steps])
    return int(count_shared(*_compact(positives), items, order.batch_size))


def _compact(positives: Positives) -> tuple[ndarray, ndarray, int]:
    """Offsets, documents numbered without gaps (marks cost the positives then, not the corpus), and how many."""
    distinct, documents = np.unique(positives.documents, return_inverse=True)
    return positives.offsets, documents.astype(np.int64), len(distinct)
