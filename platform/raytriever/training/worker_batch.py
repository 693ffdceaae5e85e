"""Batch of a step: one worker's share of the global batch, and its copy to the device.

A batch goes to a GPU in one copy from pinned memory, on a separate stream, while the GPU computes an earlier step. The
step makes its stream wait for the copy, so the CPU does not wait."""

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
        queries, passages: tokens, in buckets of similar length. With gradient caching, each bucket is a chunk.
        relevance: positives of the queries in the global batch, and pairs that are not negatives.
        chunk: maximum number of tokens of a chunk, padding included; None without gradient caching.
        version: refresh round whose hard negatives the batch uses; 0 for the initial table.
        guide: the same texts as the guide reads them; empty without a guide.
        work: tokens and FLOPs of this share.
        copied: CUDA event that marks the end of the copy to a GPU; None on a CPU.
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
    """Start to copy a batch to a device, for a GPU on the given stream; any thread may call this."""
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
        # The memory was allocated on the copy stream. Without this, it could be reused before this stream has read it.
        tensor.record_stream(stream)
        return tensor

    return batch.map(use)
