"""Batches on their way to the device: cut, counted and copied ahead of their step.

All of it happens in the loader's thread. On a GPU a batch travels in one copy from pinned memory, on a stream of its
own, while the device computes an earlier step. The step lets its stream wait for the copy; the processor waits for
nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from raytriever.losses.engine.copies import copy_all
from raytriever.training.batches import Batch
from raytriever.training.parallel.objective import CutBatch, Objective


@dataclass(frozen=True)
class StagedBatch:
    """Batch that is on the device, or on its way.

    Args:
        batch: the batch on the CPU, to cut it again.
        work: tokens and FLOPs of this worker's share.
        cut: the batch on the device.
        copied: recorded after the copy; None where there is none.
    """

    batch: Batch
    work: tuple[float, float]
    cut: CutBatch
    copied: torch.cuda.Event | None


class Stager:
    """Preparation of batches for a device.

    Args:
        objective: cuts the batches.
        count: returns tokens and FLOPs of a batch.
        device: of this worker.
    """

    def __init__(
        self, objective: Objective, count: Callable[[Batch], tuple[float, float]], device: torch.device
    ) -> None:
        self._objective, self._count, self._device = objective, count, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def stage(self, batch: Batch) -> StagedBatch:
        """Cut a batch and start to copy it; any thread may call this."""
        cut, work = self._objective.cut(batch), self._count(batch)
        if self._stream is None:
            return StagedBatch(batch, work, copy_all(cut.map, self._device), None)
        with torch.cuda.stream(self._stream):
            on_device = copy_all(cut.map, self._device)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return StagedBatch(batch, work, on_device, copied)

    def receive(self, staged: StagedBatch) -> CutBatch:
        """Return the batch for the current stream of the device, cut again where the chunk has changed since."""
        if staged.cut.chunk != self._objective.chunk:
            staged = self.stage(staged.batch)
        if staged.copied is None:
            return staged.cut
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(staged.copied)

        def use(tensor: Tensor) -> Tensor:
            # Its memory belongs to the stream of the copies: it may not be used again before this stream has read it.
            tensor.record_stream(stream)
            return tensor

        return staged.cut.map(use)
