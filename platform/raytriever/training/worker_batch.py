"""Batch of a step: one worker's share of the global batch, and its way to the device.

On a GPU a batch travels in one copy from pinned memory, on a stream of its own, while the device computes an earlier
step. The step lets its stream wait for the copy; the processor waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raytriever.losses.batch_and_temperature import RowRelevance, copy_all
from raytriever.models.packing import Buckets, move
from raytriever.models.prompts import Side

Passes = Sequence[tuple[Buckets, Side]]


@dataclass(frozen=True)
class Batch:
    """One worker's share of a global batch.

    Args:
        queries, passages: tokens, in buckets of like length; with gradient caching, in chunks that are encoded at once.
        relevance: positives of the queries in the global batch, and pairs that are no negatives.
        chunk: tokens of a chunk, padding included, at most; None without gradient caching.
        version: the round whose hard negatives it uses; 0 for the table that training began with.
        guide: the same texts as the guide encodes them, if there is one.
        work: tokens and FLOPs of this share.
        copied: recorded after the copy to a GPU.
    """

    queries: Buckets
    passages: Buckets
    relevance: RowRelevance
    chunk: int | None = None
    version: int = 0
    guide: Passes = ()
    work: tuple[float, float] = (0.0, 0.0)
    copied: torch.cuda.Event | None = None

    def map(self, copy: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a copy of each tensor, always in the same order; `lengths` stay on the CPU."""

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
    """Start to copy a batch to a device, on a stream of a GPU; any thread may call this."""
    if stream is None:
        return copy_all(batch.map, device)
    with torch.cuda.stream(stream):
        return replace(copy_all(batch.map, device), copied=stream.record_event())


def wait_for_copy(batch: Batch) -> Batch:
    """Return the batch for the current stream of its device, which waits for the copy; the processor does not."""
    if batch.copied is None:
        return batch
    stream = torch.cuda.current_stream(batch.queries.indices.device)
    stream.wait_event(batch.copied)

    def use(tensor: Tensor) -> Tensor:
        # Its memory belongs to the stream of the copies: it may not be used again before this stream has read it.
        tensor.record_stream(stream)
        return tensor

    return batch.map(use)
