"""Batches without two queries that share a positive, from any stream; each epoch stays complete.

1. Batches are windows of b slots over the endless stream, so epoch e begins (eN) mod b slots into a window.
2. The next epoch completes the last window of epoch e. The items of epoch e in this window are chosen first, from epoch
   e alone: from its end, items that share no document. So the next epoch knows the items of its first window, and the
   order of any epoch needs only two epochs of the stream.
3. The other items go, in the order of the stream, each to the first window with room and none of its documents. Items
   with a frequent document (more queries than a quarter of the windows) choose before all others, the most frequent
   first, starting at a drawn window: they need all windows.
4. Items that are left over are exchanged with items of other windows. Some cannot be: a document with more queries than
   windows occurs twice in one, and if an epoch has two or three windows, the ends, chosen without regard to the next
   epoch, can cause a few more. Such items are placed in any window and counted (`shared`).

All relevant documents of a query count, drawn or not: they would be false negatives. The work grows with the number of
positives, times the length of chains, which is almost constant.

The compiled search. A hash table links the batches that hold a document: (document, batch) leads to the next batch to
try. Chains are shortened when they are followed (union-find), as are the chains over full batches. So an item finds the
first batch from `begin` with room and none of its documents in almost constant time."""

from __future__ import annotations

from functools import lru_cache

import numba
import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import Positives, positions_of_runs
from raytriever.data.sampling.order import Epoch, Order, Stream, words

# Number of batches an item may try before it is left over: interleaved chains of different documents end here.
ROUNDS = 64
# Work on exchanges, in multiples of the work of reading the documents of every item once.
EXCHANGES = 32


@numba.njit(cache=True)
def place_all(offsets, documents, size, items, begins, head, batch, batches):  # type: ignore[no-untyped-def]
    """Return the item of each free slot, batch by batch, and the number of steps. All slots are filled.

    Args:
        offsets, documents: the documents of example i are `documents[offsets[i]:offsets[i + 1]]`, from 0 to `size`.
        items: examples, in the order in which they choose.
        begins: batch at which each item begins its search; it tries all later batches, then the earlier ones.
        head: examples that are in the first batch already.
    """
    pairs = 0
    for item in items:
        pairs += offsets[item + 1] - offsets[item]
    for item in head:
        pairs += offsets[item + 1] - offsets[item]
    bits = 4
    while (1 << bits) < 2 * pairs:
        bits += 1
    keys, links = np.full(1 << bits, -1, np.int64), np.zeros(1 << bits, np.int32)
    room = np.arange(batches + 1).astype(np.int32)
    fill, assigned = np.zeros(batches, np.int64), np.full(batches * batch, -1, np.int64)
    uses = np.zeros(size, np.int64)  # batches that hold a document
    for item in head:
        for position in range(offsets[item], offsets[item + 1]):
            uses[documents[position]] += _insert(keys, links, documents[position], 0, batches)
    fill[0] = len(head)
    steps = np.zeros(1, np.int64)
    left = np.empty(len(items), np.int64)
    lefts = 0
    for number, item in enumerate(items):
        at = _search(offsets, documents, item, begins[number], keys, links, room, batches, steps)
        if at == batches and begins[number] > 0:
            at = _search(offsets, documents, item, 0, keys, links, room, batches, steps)
        if at == batches:
            left[lefts] = number
            lefts += 1
            continue
        for position in range(offsets[item], offsets[item + 1]):
            uses[documents[position]] += _insert(keys, links, documents[position], at, batches)
        assigned[at * batch + fill[at]] = number
        fill[at] += 1
        if fill[at] == batch:
            room[at] = at + 1
    _settle(offsets, documents, size, items, head, batch, batches, fill, assigned, uses, left[:lefts], pairs, steps)
    return assigned[len(head) :], steps[0]


@numba.njit(cache=True)
def _search(offsets, documents, item, begin, keys, links, room, batches, steps):  # type: ignore[no-untyped-def]
    """Return the first batch from `begin` with room and none of the item's documents; `batches` if there is none."""
    at = begin
    for _ in range(ROUNDS):
        before = at
        root = at
        while room[root] != root:
            root = room[root]
            steps[0] += 1
        while room[at] != root:
            room[at], at = root, room[at]
        at = root
        if at == batches:
            return batches
        for position in range(offsets[item], offsets[item + 1]):
            at = _next(keys, links, documents[position], at, batches, steps)
        steps[0] += 1
        if at == before:
            return at
        if at >= batches:
            return batches
    return batches


@numba.njit(cache=True)
def _slot(keys, key):  # type: ignore[no-untyped-def]
    """Return the slot of the key, or the empty slot for it."""
    mask = len(keys) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))
    while keys[slot] != key and keys[slot] >= 0:
        slot = (slot + 1) & mask
    return slot


@numba.njit(cache=True)
def _insert(keys, links, document, at, batches):  # type: ignore[no-untyped-def]
    """Record that a batch holds a document; return 1 if it did not before."""
    key = document * np.int64(batches + 1) + at
    slot = _slot(keys, key)
    if keys[slot] >= 0:
        return 0
    keys[slot], links[slot] = key, at + 1
    return 1


@numba.njit(cache=True)
def _next(keys, links, document, at, batches, steps):  # type: ignore[no-untyped-def]
    """Return the first batch from `at` that does not hold the document."""
    base = document * np.int64(batches + 1)
    root = at
    slot = _slot(keys, base + root)
    while keys[slot] >= 0:
        root = links[slot]
        slot = _slot(keys, base + root)
        steps[0] += 1
    while at != root:
        slot = _slot(keys, base + at)
        links[slot], at = root, links[slot]
    return root


@numba.njit(cache=True)
def _settle(  # type: ignore[no-untyped-def]
    offsets, documents, size, items, head, batch, batches, fill, assigned, uses, left, pairs, steps
):
    """Place the items left over: in a free slot, by an exchange with an item of another batch, or in any batch."""
    budget = steps[0] + EXCHANGES * (pairs + len(items))
    open_documents, own_documents = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    unplaced = np.empty(len(left), np.int64)
    misses, at = 0, 0
    for turn, number in enumerate(left):
        item = items[number]
        while fill[at] == batch:
            at += 1
        everywhere = False
        for position in range(offsets[item], offsets[item + 1]):
            own_documents[documents[position]] = turn
            everywhere |= uses[documents[position]] >= batches
        placed = False
        if not everywhere:
            _mark(offsets, documents, items, head, assigned, batch, at, fill[at], open_documents, turn, steps)
            placed = not _meets(offsets, documents, item, open_documents, turn)
            other = at
            for _ in range(batches - 1):
                if placed or steps[0] > budget:
                    break
                other = other + 1 if other + 1 < batches else 0
                position = _exchange(
                    offsets, documents, items, head, assigned, batch, other, fill[other], open_documents, own_documents,
                    turn, steps,
                )  # fmt: skip
                if position >= 0:
                    assigned[position], number = number, assigned[position]
                    placed = True
            for position in range(offsets[item], offsets[item + 1]):
                uses[documents[position]] += placed
        if placed:
            assigned[at * batch + fill[at]] = number
            fill[at] += 1
        else:
            unplaced[misses] = number
            misses += 1
    for number in unplaced[:misses]:
        while fill[at] == batch:
            at += 1
        assigned[at * batch + fill[at]] = number
        fill[at] += 1


@numba.njit(cache=True)
def _mark(offsets, documents, items, head, assigned, batch, at, fill, marks, mark, steps):  # type: ignore[no-untyped-def]
    """Mark the documents of a batch."""
    for position in range(fill):
        number = assigned[at * batch + position]
        item = head[position] if number < 0 else items[number]
        for each in range(offsets[item], offsets[item + 1]):
            marks[documents[each]] = mark
            steps[0] += 1


@numba.njit(cache=True)
def _meets(offsets, documents, item, marks, mark):  # type: ignore[no-untyped-def]
    """Return True if a document of the item is marked."""
    for position in range(offsets[item], offsets[item + 1]):  # noqa: SIM110 - numba knows no generators
        if marks[documents[position]] == mark:
            return True
    return False


@numba.njit(cache=True)
def _exchange(  # type: ignore[no-untyped-def]
    offsets, documents, items, head, assigned, batch, at, fill, open_documents, own_documents, mark, steps
):
    """Return a slot of batch `at` for an exchange, or -1.

    Its item fits the open batch, and without it the marked item fits batch `at`.
    """
    only, match = -1, -1
    for position in range(at * batch, at * batch + fill):
        number = assigned[position]
        item = head[position] if number < 0 else items[number]
        steps[0] += offsets[item + 1] - offsets[item]
        if _meets(offsets, documents, item, own_documents, mark):
            if number < 0 or only >= 0:
                return -1
            only = position
        elif match < 0 and number >= 0 and not _meets(offsets, documents, item, open_documents, mark):
            match = position
    if only < 0:
        return match
    return -1 if _meets(offsets, documents, items[assigned[only]], open_documents, mark) else only


@numba.njit(cache=True)
def choose_apart(offsets, documents, size, items, count):  # type: ignore[no-untyped-def]
    """Choose `count` of the items, from the last one, so that no two share a document if possible; return a mask."""
    seen = np.zeros(size, np.bool_)
    chosen = np.zeros(len(items), np.bool_)
    for strict in (True, False):
        for position in range(len(items) - 1, -1, -1):
            if count == 0:
                return chosen
            if chosen[position]:
                continue
            item = items[position]
            free = True
            for each in range(offsets[item], offsets[item + 1]):
                free &= not seen[documents[each]]
            if free or not strict:
                chosen[position] = True
                count -= 1
                for each in range(offsets[item], offsets[item + 1]):
                    seen[documents[each]] = True
    return chosen


class Spread:
    """Stream (`order.Stream`) that rearranges the epochs of another for one batch size, given all positives.

    An epoch smaller than a batch does not change: each batch contains some query twice.
    """

    def __init__(self, stream: Stream, batch_size: int, positives: Positives, seed: int) -> None:
        self._stream, self._batch, self._seed = stream, batch_size, seed
        self._offsets, self._documents, self._distinct = _compact(positives)
        self.epoch = lru_cache(maxsize=2)(self._arranged)
        self._parted = lru_cache(maxsize=2)(self._part)
        self.steps = 0  # of the compiled walk, for the last epoch that was arranged

    @property
    def size(self) -> int:
        """Number of slots of an epoch."""
        return self._stream.size

    def _arranged(self, number: int) -> Epoch:
        """Return an epoch; see `order.Stream`. Two epochs are cached."""
        epoch = self._stream.epoch(number)
        if self.size < self._batch:
            return epoch
        last = self._parted(number)
        rest, tail = np.flatnonzero(~last), np.flatnonzero(last)
        head = self._head(number)
        windows = (len(rest) + len(head)) // self._batch
        chooses, begins = self._choosers(epoch.examples[rest], windows, number)
        assigned, self.steps = place_all(
            self._offsets,
            self._documents,
            self._distinct,
            epoch.examples[rest[chooses]],
            begins,
            head,
            self._batch,
            windows,
        )
        positions = np.concatenate([rest[chooses[assigned]], tail])
        arranged = Epoch(epoch.examples[positions], epoch.seen_in[positions])
        for column in arranged:
            column.setflags(write=False)
        return arranged

    def _part(self, number: int) -> ndarray:
        """Return the slots of the stream's epoch that go into its last window, which the next epoch completes."""
        count = (number + 1) * self.size % self._batch
        return choose_apart(self._offsets, self._documents, self._distinct, self._stream.epoch(number).examples, count)

    def _head(self, number: int) -> Int64[ndarray, " positions"]:
        """Return the examples of the previous epoch in the first window of this one, in their order."""
        count = number * self.size % self._batch
        if not count:
            return np.zeros(0, dtype=np.int64)
        return self._stream.epoch(number - 1).examples[self._parted(number - 1)]

    def _choosers(self, examples: ndarray, windows: int, number: int) -> tuple[ndarray, ndarray]:
        """Return the order in which examples choose, and the first window that each tries."""
        starts, counts = self._offsets[examples], np.diff(self._offsets)[examples]
        documents = self._documents[positions_of_runs(starts, counts)]
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
    """Return the number of queries of these steps that share a positive with an earlier one of their batch."""
    if not steps:
        return 0
    items = np.concatenate([order.batch(step) for step in steps])
    counts = np.diff(positives.offsets)[items]
    documents = positives.documents[positions_of_runs(positives.offsets[items], counts)]
    owners = np.repeat(np.arange(len(items)), counts)
    # A document of a batch is there again, unless this is its first.
    again = np.ones(len(owners), bool)
    batches = owners // order.batch_size * (documents.max() + 1)
    again[np.unique(batches + documents, return_index=True)[1]] = False
    return len(np.unique(owners[again]))


def _compact(positives: Positives) -> tuple[ndarray, ndarray, int]:
    """Return the offsets, the documents numbered without gaps, and their number.

    Without gaps, the memory of marks grows with the positives, not with the corpus.
    """
    distinct, documents = np.unique(positives.documents, return_inverse=True)
    return positives.offsets, documents.astype(np.int64), len(distinct)
