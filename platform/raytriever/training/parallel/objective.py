"""Encoder and loss as one module, so that a strategy synchronizes and shards all parameters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from raytriever.losses.engine.batch import BatchIds
from raytriever.losses.engine.workers import ALONE, Workers
from raytriever.losses.loss import Loss, LossOutput
from raytriever.models.buckets import Buckets
from raytriever.models.packing import TokenBatch, texts_of
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever
from raytriever.prompts import Side
from raytriever.training.parallel.grad_cache import Chunk, cached_loss, cut, level
from raytriever.training.parallel.out_of_memory import Agreement


class Batch(Protocol):
    """One worker's share of a global batch, on its device."""

    @property
    def queries(self) -> Buckets:
        """Tokens of the queries."""

    @property
    def passages(self) -> Buckets:
        """Tokens of the passages."""

    @property
    def ids(self) -> BatchIds:
        """Ids of queries and passages."""


class Objective(nn.Module):
    """Loss of the global batch, from one worker's share of it.

    Args:
        retriever: encodes queries and passages.
        loss: reduces the score matrix of the global batch.
        precision: `fp32` or `bf16`, of the encoder; trained weights, embeddings and loss are float32.
        chunk: number of texts or tokens encoded at a time, with gradient caching; None to keep the activations of the
            whole batch.
        agreement: of the workers on whether one ran out of memory; None for one worker.

    Attributes:
        parts_communicate: parts gather weights and reduce gradients themselves (FSDP2 by block). Then all workers
            encode equal numbers of parts, and gradient caching leaves the gradients to the backward pass of each part.
            A worker that runs out of memory ends the group: the others wait for it within a part.
    """

    def __init__(
        self,
        retriever: Retriever,
        loss: Loss,
        precision: str,
        chunk: Chunk | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        super().__init__()
        self.retriever, self.loss, self.precision, self.chunk = retriever, loss, precision, chunk
        self._agreement = agreement or Agreement(ALONE)
        self.parts_communicate = False

    def forward(self, batch: Batch, workers: Workers) -> LossOutput:
        """Return the differentiable loss, equal with and without gradient caching."""
        passes = self.retriever.passes(batch.queries, batch.passages)
        if self.chunk is not None:
            passes = [(cut(texts, self.chunk), side) for texts, side in passes]
        if self.parts_communicate:
            passes = [(level(texts, workers), side) for texts, side in passes]
        parts = [(part, side) for texts, side in passes for part in texts.buckets]

        def precision() -> AbstractContextManager[Any]:
            return autocast(self.precision, parts[0][0]["input_ids"].device)

        def encode(part: TokenBatch, side: Side) -> Tensor:
            with precision():
                return self.retriever.encode(part, side).float()

        def reduce(embeddings: Tensor) -> LossOutput:
            """Return the loss of the embeddings of all parts."""
            by_pass = embeddings.split([sum(map(texts_of, texts.buckets)) for texts, _ in passes])
            ordered = torch.cat([one[texts.indices] for one, (texts, _) in zip(by_pass, passes, strict=True)])
            queries, passages = ordered.split([len(batch.queries.indices), len(batch.passages.indices)])
            output: LossOutput = self.loss(queries, passages, batch.ids, workers)
            return output

        if self.chunk is not None and torch.is_grad_enabled():
            # Parts that communicate are encoded in the same order on all workers.
            keep = 1 if self.parts_communicate else self.chunk.holds([part for part, _ in parts])
            encoder = None if self.parts_communicate else _trained(self.retriever)
            agreement = None if self.parts_communicate else self._agreement
            return cached_loss(parts, encode, precision, reduce, encoder, _trained(self.loss), agreement, keep)
        # Weights are cast once a part: cast once a batch, the parts' gradients would be added up in bf16.
        return reduce(torch.cat([encode(part, side) for part, side in parts]))


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
