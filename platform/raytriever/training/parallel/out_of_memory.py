"""Out-of-memory errors of a step: recognised, and known to all workers before any of them waits for another.

One worker may run out of memory alone, because its texts are longer or its GPU is shared. The others would then wait
for it in a collective for ever. So with gradient caching the workers agree twice a step, where no collective has begun:
after all parts are encoded, and before the gradients are synchronized. They agree over gloo, in the memory of the CPU,
so no worker waits for its GPU.

A step that ran out of memory is repeated with half the chunk: `Strategy.abandon` discards what it left,
`ChunkChoice.smaller` halves the chunk and stores it, and the loop does the step again.

Elsewhere, with FSDP2 by block, and with FSDP2 of a torch before 2.13, a worker that runs out of memory raises. Ray
Train then ends the others and restarts the group, with a smaller chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from raytriever.losses.distributed import WorkerGroup
from raytriever.models.files import first_line
from raytriever.models.precision import is_out_of_memory

T = TypeVar("T")


class OutOfMemory(MemoryError):
    """A step ran out of memory on at least one worker."""


class Agreement:
    """Agreement of all workers on whether one of them ran out of memory.

    Args:
        workers: the group, for tensors in the memory of the CPU; all call the object in the same order.
    """

    def __init__(self, workers: WorkerGroup) -> None:
        self._workers = workers

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of this worker's own work, which calls no collective.

        Raises:
            OutOfMemory: a worker ran out of memory.
        """
        results: list[T] = []
        reason = "another worker ran out of memory"
        try:
            results.append(work())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)  # not the error: its traceback would keep the tensors of the step
        if self.maximum(not results):
            raise OutOfMemory(reason)
        return results[0]

    def maximum(self, number: int) -> int:
        """Return the largest number of all workers, without a wait for a GPU; all workers call it."""
        return int(self._workers.all_reduce(torch.tensor([number], dtype=torch.int32), "max"))
