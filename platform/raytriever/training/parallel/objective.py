"""Encoder and loss as one module, so that a strategy synchronizes and shards all parameters; and batches on their way
to it: cut into parts and copied to the device by the loader's thread, received by the step.

On a GPU a batch travels in one copy from pinned memory, on a stream of its own, while the device computes an earlier
step. The step lets its stream wait for the copy; the processor waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from raytriever.losses.batch import copy_all
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.guide import GuideEmbeddings
from raytriever.losses.loss import Loss, LossOutput
from raytriever.models.packing import Buckets, TokenBatch, texts_of
from raytriever.models.retriever import Retriever
from raytriever.prompts import Side
from raytriever.training.batch import Batch, ChunkSizes, CutBatch, Passes, cut
from raytriever.training.parallel.grad_cache import Agreement, Encode, cached_loss


def level(texts: Buckets, agreement: Agreement) -> Buckets:
    """Return as many parts as the worker with the most has; all workers call it.

    The first part, of the shortest texts, is repeated. The embeddings of a repetition are in no text's place, so they
    have no effect on the loss.
    """
    parts = len(texts.buckets)
    return Buckets(texts.buckets + texts.buckets[:1] * (agreement.maximum(parts) - parts), texts.indices)


class Objective(nn.Module):
    """Loss of the global batch, from one worker's share of it.

    Args:
        loss: reduces the score matrix of the global batch.
        precision: `fp32` or `bf16`, of the encoder; trained weights, embeddings and loss are float32.
        chunk: number of texts or tokens encoded at a time, with gradient caching; None to keep the activations of the
            whole batch.
        agreement: Agreement of the workers on whether one ran out of memory; None for one worker.
        guide: returns the guide's embeddings of a part; None without a guide. It is not a module of this one, so no
            strategy trains, shards or stores its weights.
        guide_tokens: number of tokens that the guide encodes at a time; None for that of `chunk`. It keeps no
            activations, so it is fastest with the parts of an encoding, which are smaller.

    Attributes:
        parts_communicate: parts gather weights and reduce gradients themselves (FSDP2 by block). Then all workers
            encode equal numbers of parts, and gradient caching leaves the gradients to the backward pass of each part.
            A worker that runs out of memory ends the group: the others wait for it within a part.
        leaves_part: gradient caching leaves the backward pass of its smallest part to that of the loss (DDP).
    """

    def __init__(
        self,
        retriever: Retriever,
        loss: Loss,
        precision: str,
        chunk: ChunkSizes | None = None,
        agreement: Agreement | None = None,
        guide: Encode | None = None,
        guide_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self._guide, self._guide_tokens = guide, guide_tokens
        self.retriever, self.loss, self.precision, self.chunk = retriever, loss, precision, chunk
        self._agreement = agreement or Agreement(ALONE)
        self.parts_communicate = self.leaves_part = False

    def cut(self, batch: Batch) -> CutBatch:
        """Cut a batch into parts; on the CPU, because lengths are read."""
        chunk, passes = self.chunk, self.retriever.passes(batch.queries, batch.passages)
        guide: Passes = () if self._guide is None else batch.guide
        if chunk is not None:
            passes = [(cut(texts, chunk), side) for texts, side in passes]
        if guide and (of_guide := self._guide_chunk()):
            guide = [(cut(texts, of_guide), side) for texts, side in guide]
        return CutBatch(passes, len(batch.queries.indices), len(batch.passages.indices), batch.ids, chunk, guide)

    def forward(self, batch: Batch | CutBatch, workers: WorkerGroup) -> LossOutput:
        """Return the differentiable loss, equal with and without gradient caching."""
        whole = batch if isinstance(batch, CutBatch) else self.cut(batch)
        passes = whole.passes
        if self.parts_communicate:
            passes = [(level(texts, self._agreement), side) for texts, side in passes]
        parts = [(part, side) for texts, side in passes for part in texts.buckets]
        device, guide = parts[0][0]["input_ids"].device, self._guide_embeddings(whole)
        precision = partial(torch.autocast, device.type, torch.bfloat16, enabled=self.precision == "bf16")

        def encode(part: TokenBatch, side: Side) -> Tensor:
            with precision():
                return self.retriever.encode(part, side).float()

        in_order, others = partial(_in_order, passes=passes, batch=whole), (whole.ids, workers, guide)
        if self.chunk is None or not torch.is_grad_enabled():
            # Weights are cast once a part: cast once a batch, the parts' gradients would be added up in bf16.
            output: LossOutput = self.loss(*in_order(torch.cat([encode(part, side) for part, side in parts])), *others)
            return output
        # Parts that communicate are encoded in the same order on all workers.
        keep = 1 if self.parts_communicate else self.chunk.holds([part for part, _ in parts])
        encoder = None if self.parts_communicate else _trained(self.retriever)
        agreement = None if self.parts_communicate else self._agreement
        return cached_loss(
            parts,
            encode,
            precision,
            lambda embeddings: self.loss(*in_order(embeddings), *others),
            encoder,
            _trained(self.loss),
            agreement,
            keep,
            self.leaves_part,
        )

    def _guide_chunk(self) -> ChunkSizes | None:
        """Return the size of the guide's parts, which are no larger than those of the training; None to cut nothing."""
        chunk = self.chunk or ChunkSizes()
        tokens = [limit for limit in (chunk.tokens, self._guide_tokens) if limit is not None]
        return ChunkSizes(chunk.sequences, min(tokens, default=None)) if tokens or self.chunk else None

    @torch.no_grad()
    def _guide_embeddings(self, batch: CutBatch) -> GuideEmbeddings | None:
        """Return the guide's embeddings of a batch, encoded in its parts; None without a guide."""
        encode = self._guide
        if encode is None:
            return None

        def encode_all() -> Tensor:
            return torch.cat([encode(part, side) for texts, side in batch.guide for part in texts.buckets])

        embeddings = encode_all() if self.chunk is None else self._agreement.run(encode_all)
        return GuideEmbeddings(*_in_order(embeddings, batch.guide, batch))


def _in_order(embeddings: Tensor, passes: Passes, batch: CutBatch) -> tuple[Tensor, ...]:
    """Return the embeddings of queries and passages in the order of the batch, from those of all parts."""
    by_pass = embeddings.split([sum(map(texts_of, texts.buckets)) for texts, _ in passes])
    ordered = torch.cat([one[texts.indices] for one, (texts, _) in zip(by_pass, passes, strict=True)])
    return ordered.split([batch.queries, batch.passages])


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


# --------------------------------------------------------------------------------------------- on the way to the device


@dataclass(frozen=True)
class StagedBatch:
    """Batch that is on the device, or on its way.

    Args:
        batch: the batch on the CPU, to cut it again.
        work: tokens and FLOPs of this worker's share.
        copied: recorded after the copy; None where there is none.
    """

    batch: Batch
    work: tuple[float, float]
    cut: CutBatch
    copied: torch.cuda.Event | None


class Stager:
    """Preparation of batches for a device."""

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
