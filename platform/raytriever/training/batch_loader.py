"""Batches of the steps, and the loader that makes them in a thread that runs ahead of the training loop.

1. A worker's passages are in groups, one group for each query: first the positives, then the hard negatives.
2. A batch is a pure function of (data, seed, step), so no iterator position has to be saved.
3. The thread prepares at most `depth` batches ahead, and measures how long a step waited for its batch.
4. The thread also counts the tokens and FLOPs of a batch. The batch goes to a GPU in one copy from pinned memory, on a
   separate stream, while the GPU computes an earlier step. The step's stream waits for the copy, the CPU does not.

The loader is a thread, not a process: slicing memory-mapped tokens takes one or two milliseconds, less than sending a
batch between processes. It calls NumPy, because torch would start another pool of threads for this thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from raytriever.data.dataset import Tokens
from raytriever.data.hard_negatives import NegativesTable
from raytriever.data.sampling.batch_order import Order, worker_slice
from raytriever.data.sampling.teacher_scores import TeacherTable
from raytriever.data.sampling.training_examples import Examples
from raytriever.losses.batch_and_temperature import RowRelevance, copy_all
from raytriever.losses.batch_relevance import GlobalIds, find_relevance
from raytriever.losses.distributed import WorkerGroup
from raytriever.models.packing import Buckets, move
from raytriever.models.prompts import Side
from raytriever.models.retriever import Retriever
from raytriever.training.guide_encoder import GuideTexts

Passes = Sequence[tuple[Buckets, Side]]


@dataclass(frozen=True)
class Batch:
    """One worker's part of a global batch."""

    # `queries`, `passages`: tokens, in buckets of similar length. With gradient caching, each bucket is a chunk.
    queries: Buckets
    passages: Buckets
    relevance: RowRelevance  # positives of the queries in the global batch, and pairs that are not negatives
    chunk: int | None = None  # maximum number of tokens of a chunk, padding included; None without gradient caching
    version: int = 0  # refresh round whose hard negatives the batch uses; 0 for the initial table
    guide: Passes = ()  # the same texts, tokenized for the guide; empty without a guide
    work: tuple[float, float] = (0.0, 0.0)  # number of tokens and number of FLOPs of this part
    copied: torch.cuda.Event | None = None  # CUDA event that marks the end of the copy to a GPU; None on a CPU

    def map(self, copy: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with each tensor replaced by `copy(tensor)`, in a fixed order; `lengths` are kept."""

        def copy_texts(texts: Buckets) -> Buckets:
            return Buckets([move(bucket, copy) for bucket in texts.buckets], copy(texts.indices))

        return replace(
            self,
            queries=copy_texts(self.queries),
            passages=copy_texts(self.passages),
            relevance=self.relevance.map(copy),
            guide=[(copy_texts(texts), side) for texts, side in self.guide],
        )


def copy_to(batch: Batch, device: torch.device, stream: torch.cuda.Stream | None) -> Batch:
    """Start to copy a batch to a device. A copy to a GPU uses the given stream. Any thread may call this."""
    if stream is None:
        return copy_all(batch.map, device)
    with torch.cuda.stream(stream):
        return replace(copy_all(batch.map, device), copied=stream.record_event())


def wait_for_copy(batch: Batch) -> Batch:
    """Make the current stream of the batch's device wait for the copy; the CPU does not wait."""
    if batch.copied is None:
        return batch
    stream = torch.cuda.current_stream(batch.queries.indices.device)
    stream.wait_event(batch.copied)

    def use(tensor: Tensor) -> Tensor:
        # The copy stream allocated the memory. It could otherwise reuse the memory before the current stream reads it.
        tensor.record_stream(stream)
        return tensor

    return batch.map(use)


T = TypeVar("T")
PREFETCH_DEPTH = 2  # batches that the loader prepares ahead


@dataclass(frozen=True)
class Batches:
    """Source of the batches of a split. It makes each worker's part of a batch."""

    tokens: Tokens  # tokens of queries and documents by position, made for the retriever that encodes them
    examples: Examples  # the training examples: queries with their positives and hard negatives
    order: Order  # order in which the steps use the examples
    positives_per_query: int  # maximum number of positives in the group of a query
    negatives_per_query: int  # number of hard negatives in a group; a group with fewer positives has more negatives
    version: int = 0  # refresh round whose hard negatives are used; 0 for the initial table
    teacher: TeacherTable | None = None  # a teacher's scores of the pairs of a group; None without a teacher
    labels: TeacherTable | None = None  # graded relevance of the pairs of a group, 0 to 1; None for binary relevance
    guide: GuideTexts | None = None  # texts, tokenized for the false-negative guide; None without a guide

    def with_negatives(self, negatives: NegativesTable, version: int) -> Batches:
        """Return the batches with other hard negatives, but the same order, queries, positives and random samples."""
        return replace(self, examples=replace(self.examples, negatives=negatives), version=version)

    def batch(
        self, step: int, retriever: Retriever, workers: WorkerGroup, symmetric: bool = False, chunk: int | None = None
    ) -> Batch:
        """Return this worker's part of the global batch of `step` (the first step is 0).

        Every worker computes the ids of the whole batch, so the relevance needs no communication."""
        chosen, epochs = self.order.batch(step), self.order.epochs(step)
        local = len(worker_slice(chosen, workers.rank, workers.size))
        own = slice(workers.rank * local, (workers.rank + 1) * local)
        queries = self.examples.queries(chosen)
        positives, groups = self.examples.groups(chosen, epochs, self.positives_per_query, self.negatives_per_query)
        # Equal texts have the same id in the loss, so a duplicate of a positive is not a negative.
        query_ids = self.examples.query_copies.first(queries)
        positive_ids, group_ids = (self.examples.document_copies.first(positions) for positions in (positives, groups))
        known_rows, known = self.examples.known(chosen)
        everyones = GlobalIds(query_ids, positive_ids, group_ids.reshape(-1), known_rows, known, self.order.seed, step)
        queries, passages = queries[own], groups[own].reshape(-1)
        teacher, labels = (
            None if table is None else (group_ids[own], table.of_groups(queries, groups[own]))
            for table in (self.teacher, self.labels)
        )
        of_queries, of_passages = None, None  # prompts, only for a model that leaves prompts out of pooling
        if not retriever.description.pool_prompt:
            of_queries = self.tokens.query_prompts.of(queries)
            of_passages = self.tokens.document_prompts.of(passages)
        return Batch(
            retriever.batch_of(self.tokens.queries.take(queries), "query", of_queries, chunk),
            retriever.batch_of(self.tokens.documents.take(passages), "passage", of_passages, chunk),
            find_relevance(everyones, workers.rank, workers.size, teacher, symmetric, labels),
            chunk,
            self.version,
            self.guide.passes(queries, passages, chunk) if self.guide is not None else (),
        )


class BatchVersions:
    """Versions of the batches, by their first step. The loader's thread reads them while the loop adds versions."""

    def __init__(self, batches: Batches) -> None:
        # No lock is needed: the tuple is replaced as a whole, so a reader sees either the old or the new versions.
        self._all: tuple[tuple[int, Batches], ...] = ((0, batches),)

    @property
    def newest(self) -> Batches:
        """The batches of the last version."""
        return self._all[-1][1]

    def at(self, step: int) -> Batches:
        """Return the batches of `step` (the first step is 0)."""
        return next(batches for first_step, batches in reversed(self._all) if first_step <= step)

    def add(self, first_step: int, batches: Batches) -> None:
        """Add a version, which `first_step` and later steps use."""
        if first_step < (last := self._all[-1][0]):
            raise ValueError(f"a version from step {first_step} cannot follow a version from step {last}")
        self._all = (*(version for version in self._all if version[0] < first_step), (first_step, batches))

    def forget_before(self, step: int) -> None:
        """Remove the versions that only steps before `step` use."""
        usable = [number for number, (first_step, _) in enumerate(self._all) if first_step <= step]
        self._all = self._all[usable[-1] :]


class Prefetcher(Generic[T]):
    """Iterator over `make(step)` for each of `steps`, in order, computed ahead in a thread; used in a `with` statement.

    An error of `make` is raised when its batch is requested, and ends the iteration. At the end of the block the thread
    finishes the batch that it is preparing, and ends. `waited`: seconds that the loop waited for the last batch."""

    def __init__(self, make: Callable[[int], T], steps: Iterable[int], depth: int = PREFETCH_DEPTH) -> None:
        self.waited = 0.0
        self._make, self._steps, self._depth = make, iter(steps), depth
        self._pending = deque[Future[T]]()
        self._pool = ThreadPoolExecutor(1, "loader")

    def __enter__(self) -> Self:
        self._submit(self._depth)
        return self

    def __exit__(self, *error: object) -> None:
        self._pending.clear()
        self._pool.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._pending:
            raise StopIteration
        began = perf_counter()
        try:
            batch = self._pending.popleft().result()
        except BaseException:
            self._pending.clear()
            raise
        self.waited = perf_counter() - began
        self._submit(1)
        return batch

    def _submit(self, steps: int) -> None:
        self._pending.extend(self._pool.submit(self._make, step) for step in islice(self._steps, steps))
