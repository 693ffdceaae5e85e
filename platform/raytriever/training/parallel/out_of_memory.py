"""Out of memory in training: the workers repeat the step with half the chunk, or Ray Train restarts them.

One worker may run out of memory alone, because its texts are longer or its GPU is shared. The others would then wait
for it in a collective forever. So with gradient caching the workers vote twice in a step, when no collective is
running: after all chunks are encoded, and before the gradients are synchronized. If all workers learn of the error in
time, the step is repeated. In other places, and with FSDP2, the worker raises an error. Ray Train then restarts all
workers, with a smaller chunk. `models.device_memory` recognizes the errors, and `chunk_size` halves the chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from raytriever.losses.distributed import WorkerGroup
from raytriever.models.device_memory import is_out_of_memory
from raytriever.models.directory.model_files import first_line
from raytriever.models.packing import TokenBatch
from raytriever.training.batch_loader import Batch

T = TypeVar("T")


class OutOfMemory(MemoryError):
    """A step ran out of memory on at least one worker."""


class Vote:
    """Vote of all workers on whether one of them ran out of memory, before any of them waits for another.

    They vote over gloo, in CPU memory, so no one waits for a GPU. All workers make every call in the same order."""

    def __init__(self, workers: WorkerGroup) -> None:
        self._workers = workers

    def run(self, work: Callable[[], T]) -> T:
        """Run `work`, which calls no collective. All workers raise `OutOfMemory` if one of them runs out of memory."""
        results: list[T] = []
        reason = "another worker ran out of memory"
        try:
            results.append(work())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)  # the traceback of the error itself would keep the tensors of the step
        if self.maximum(not results):
            raise OutOfMemory(reason)
        return results[0]

    def maximum(self, number: int) -> int:
        """Return the maximum of a number over all workers. All workers call this, and no worker waits for its GPU."""
        return int(self._workers.all_reduce(torch.tensor([number], dtype=torch.int32), "max"))


def reason_of(error: Exception, workers: WorkerGroup) -> tuple[str, bool]:
    """Return why a step ran out of memory, and whether all workers know that it did; raise any other error.

    The reason is text, because the traceback of the error would keep the tensors of the step."""
    if not is_out_of_memory(error):
        raise error
    return first_line(error), workers.size == 1 or isinstance(error, OutOfMemory)


@dataclass(frozen=True)
class Recovery:
    """Reaction of one worker to a step that ran out of memory."""

    workers: WorkerGroup
    abandon: Callable[[], bool]  # see `Strategy.abandon`
    smaller: Callable[[int | None, Sequence[TokenBatch], bool], int | None]  # see `ChunkChoice.smaller`
    log: Callable[[str], None]

    def next_chunk(self, step: int, chunk: int | None, batch: Batch, reason: str, is_agreed: bool) -> int | None:
        """Return the chunk in tokens with which the step can be repeated; None for the whole batch.

        Raises:
            OutOfMemory: the step cannot be repeated, because other workers wait in a collective or the strategy cannot
                discard it. Ray Train then restarts all workers.
        """
        is_agreed &= self.abandon()
        chunk = self.smaller(chunk, [*batch.queries.buckets, *batch.passages.buckets], is_agreed)
        size = "the whole batch" if chunk is None else f"at most {chunk} tokens"
        if not is_agreed:
            where = f"Step {step} ran out of memory on worker {self.workers.rank} ({reason})"
            self.log(f"{where}; restarting all workers, to encode {size} at a time.")
            raise OutOfMemory(where)
        if self.workers.rank == 0:
            self.log(f"Step {step} ran out of memory ({reason}); encoding {size} at a time from now on.")
        return chunk
