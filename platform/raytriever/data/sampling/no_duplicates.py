"""Batches from any stream in which no two queries share a positive. Each epoch stays complete.

If an example shares a relevant document with its batch, it waits for the next batch. All relevant documents of a query
are compared, sampled or not: they would be false negatives. `shared` counts the few remaining cases:

1. If a document has more queries than there are batches, some batch has two of these queries.
2. The last batches of an epoch get all examples that are still waiting.
3. In a batch that spans two epochs, the part of the second epoch is arranged without regard to the first."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from raytriever.data.dataset import Positives, positions_of_slices
from raytriever.data.sampling.batch_order import Epoch, Order, Stream

# Number of waiting examples that are tried for each slot of a batch. More would be slow if documents repeat often.
_TRIED = 64


class Spread:
    """Stream that rearranges the epochs of another stream for one batch size. `positives` are those of all examples."""

    def __init__(self, stream: Stream, batch_size: int, positives: Positives) -> None:
        self._stream, self._batch = stream, batch_size
        self._offsets, self._documents = positives.offsets.tolist(), positives.documents.tolist()
        self.epoch = lru_cache(maxsize=2)(self._arranged)

    @property
    def size(self) -> int:
        """Number of slots of an epoch."""
        return self._stream.size

    def _arranged(self, number: int) -> Epoch:
        epoch = self._stream.epoch(number)
        order, waiting = list[int](), list[int]()
        room, taken = self._batch - number * self.size % self._batch, set[int]()
        documents = [
            self._documents[self._offsets[example] : self._offsets[example + 1]] for example in epoch.examples.tolist()
        ]
        for slot in range(len(documents)):
            waiting.append(slot)
            while waiting:
                free = (at for at, example in enumerate(waiting[:_TRIED]) if taken.isdisjoint(documents[example]))
                if (at := next(free, None)) is None:
                    break
                order.append(waiting.pop(at))
                taken.update(documents[order[-1]])
                room -= 1
                if not room:
                    room, taken = self._batch, set()
        slots = np.array(order + waiting)
        arranged = Epoch(epoch.examples[slots], epoch.seen_in[slots])
        for column in arranged:
            column.setflags(write=False)
        return arranged


def shared(order: Order, positives: Positives, steps: range) -> int:
    """Return the number of queries of these steps that share a positive with an earlier query of their batch."""
    if not steps:
        return 0
    items = np.concatenate([order.batch(step) for step in steps])
    counts = np.diff(positives.offsets)[items]
    documents = positives.documents[positions_of_slices(positives.offsets[items], counts)]
    owners = np.repeat(np.arange(len(items)), counts)
    # True for each occurrence of a document in a batch, except the first one.
    again = np.ones(len(owners), bool)
    batches = owners // order.batch_size * (documents.max() + 1)
    again[np.unique(batches + documents, return_index=True)[1]] = False
    return len(np.unique(owners[again]))
