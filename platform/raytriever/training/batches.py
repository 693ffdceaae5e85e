"""Batch of a step as tensors, and the thread that prepares batches ahead of the training loop.

1. A worker's passages are the groups of its queries, one after another: positives, then hard negatives.
2. A batch is a pure function of (data, seed, step), so no iterator position has to be saved.
3. The thread prepares at most `depth` batches ahead. It measures how long a step waited for its batch.

It is a thread, not a process: a batch is slices of memory-mapped tokens, a millisecond or two, which is less than
sending it between processes. It calls numpy rather than torch, which would give each thread its own pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from numpy import ndarray

from raytriever.data.dataset import Tokens
from raytriever.data.negatives import NegativesTable
from raytriever.data.sampling.examples import Examples
from raytriever.data.sampling.order import Order, worker_slice
from raytriever.data.sampling.teacher import TeacherTable
from raytriever.losses.engine.batch import PAD, BatchIds, TeacherScores
from raytriever.losses.engine.workers import Workers
from raytriever.models.buckets import Buckets
from raytriever.models.retriever import Retriever


@dataclass(frozen=True)
class Batch:
    """One worker's share of a global batch; `version` tells the tables of hard negatives it may draw from apart."""

    queries: Buckets
    passages: Buckets
    ids: BatchIds
    version: int = 0

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        known = None if self.ids.known is None else self.ids.known.to(device)
        teacher = self.ids.teacher
        ids = BatchIds(
            self.ids.queries.to(device),
            self.ids.positives.to(device),
            self.ids.passages.to(device),
            known,
            self.ids.seed,
            self.ids.step,
            teacher and TeacherScores(teacher.documents.to(device), teacher.scores.to(device)),
        )
        return Batch(self.queries.to(device), self.passages.to(device), ids, self.version)


@dataclass(frozen=True)
class BatchSource:
    """Makes any batch of a split on any worker.

    Args:
        tokens: of queries and documents by position, made for the retriever that will read them.
        examples: the split's examples.
        order: which examples a step holds.
        positives_per_query: positives of a query's group, at most.
        negatives_per_query: hard negatives of a query's group; more where the query has fewer positives.
        version: of its hard negatives.
        teacher: scores of the pairs of a group; None where nobody was asked.
    """

    tokens: Tokens
    examples: Examples
    order: Order
    positives_per_query: int
    negatives_per_query: int
    version: int = 0
    teacher: TeacherTable | None = None

    def with_negatives(self, negatives: NegativesTable, version: int) -> BatchSource:
        """The same but for the hard negatives: the same order, queries, positives, and draws for each purpose."""
        return replace(self, examples=replace(self.examples, negatives=negatives), version=version)

    def batch(self, step: int, retriever: Retriever, workers: Workers) -> Batch:
        """The share of this worker in the global batch of `step`."""
        chosen = worker_slice(self.order.batch(step), workers.rank, workers.size)
        epochs = worker_slice(self.order.epochs(step), workers.rank, workers.size)
        queries = self.examples.queries(chosen)
        positives, groups = self.examples.groups(chosen, epochs, self.positives_per_query, self.negatives_per_query)
        passages = groups.reshape(-1)
        ids = BatchIds(
            queries=torch.from_numpy(queries),
            positives=torch.from_numpy(positives),
            passages=torch.from_numpy(passages),
            known=torch.from_numpy(_padded([self.examples.positives.of(int(row)) for row in chosen])),
            seed=self.order.seed,
            step=step,
            teacher=self._scored(queries, groups),
        )
        return Batch(
            retriever.batch_of(self.tokens.queries.take(queries), "query"),
            retriever.batch_of(self.tokens.documents.take(passages), "passage"),
            ids,
            self.version,
        )

    def _scored(self, queries: ndarray, groups: ndarray) -> TeacherScores | None:
        if self.teacher is None:
            return None
        scores = self.teacher.of_groups(queries, groups)
        return TeacherScores(torch.from_numpy(groups), torch.from_numpy(scores))


def _padded(rows: Sequence[ndarray]) -> ndarray:
    """Rows of unequal length as one array, `PAD` behind the short ones."""
    padded = np.full((len(rows), max(len(row) for row in rows)), PAD, np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


T = TypeVar("T")
DEPTH = 2


@dataclass(frozen=True)
class _Made(Generic[T]):
    """A batch, or why there is none."""

    batch: T | None = None
    error: BaseException | None = None


class Prefetcher(Generic[T]):
    """An iterator over `make(step)` for the given steps, in order; to be used in a `with` statement.

    What `make` raises is raised where its batch would be taken, and ends the iteration. On leaving, by whatever
    way, the thread finishes the batch it is making and ends.

    Args:
        make: the batch of a step, the same whenever and in whatever thread it is called.
        steps: which batches, in order.
        depth: batches made ahead, at least 1.

    Attributes:
        waited: seconds for which the last batch taken was waited for.
    """

    def __init__(self, make: Callable[[int], T], steps: Iterable[int], depth: int = DEPTH) -> None:
        self.waited = 0.0
        self._make = make
        self._steps = steps
        # Both queues are C code that an interrupt cannot leave half-locked, and sleep without polling.
        self._places: SimpleQueue[bool] = SimpleQueue()
        self._made: SimpleQueue[_Made[T] | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name="loader", daemon=True)
        for _ in range(depth):
            self._places.put(True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed = True
        self._places.put(True)
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed:
            raise StopIteration
        began = perf_counter()
        made = self._made.get()
        self.waited = perf_counter() - began
        if made is None:
            self._closed = True
            raise StopIteration
        if made.error is not None:
            self._closed = True
            raise made.error
        self._places.put(True)
        return made.batch  # type: ignore[return-value]

    def _run(self) -> None:
        """The thread. It may end before its last batches are taken, but never without having put an end."""
        try:
            for step in self._steps:
                self._places.get()
                if self._closed:
                    break
                self._made.put(_Made(self._make(step)))
        except BaseException as error:
            self._made.put(_Made(error=error))
        self._made.put(None)
