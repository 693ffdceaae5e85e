"""Encoder and loss as one module, so that a strategy synchronizes and shards all parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.guide import GuideEmbeddings
from raytriever.losses.loss import Loss, LossOutput
from raytriever.models.packing import Buckets, TokenBatch, texts_of
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever
from raytriever.prompts import Side
from raytriever.training.batch import Batch, ChunkSizes, CutBatch, Passes, cut
from raytriever.training.parallel.grad_cache import Encode, cached_loss
from raytriever.training.parallel.out_of_memory import Agreement


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
        retriever: encodes queries and passages.
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

        def precision() -> AbstractContextManager[Any]:
            return autocast(self.precision, parts[0][0]["input_ids"].device)

        def encode(part: TokenBatch, side: Side) -> Tensor:
            with precision():
                return self.retriever.encode(part, side).float()

        guide = self._guide_embeddings(whole)

        def reduce(embeddings: Tensor) -> LossOutput:
            """Return the loss of the embeddings of all parts."""
            queries, passages = _in_order(embeddings, passes, whole)
            output: LossOutput = self.loss(queries, passages, whole.ids, workers, guide)
            return output

        if self.chunk is not None and torch.is_grad_enabled():
            # Parts that communicate are encoded in the same order on all workers.
            keep = 1 if self.parts_communicate else self.chunk.holds([part for part, _ in parts])
            encoder = None if self.parts_communicate else _trained(self.retriever)
            agreement = None if self.parts_communicate else self._agreement
            return cached_loss(
                parts, encode, precision, reduce, encoder, _trained(self.loss), agreement, keep, self.leaves_part
            )
        # Weights are cast once a part: cast once a batch, the parts' gradients would be added up in bf16.
        return reduce(torch.cat([encode(part, side) for part, side in parts]))

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
