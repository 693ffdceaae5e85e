"""Encoder and loss as one module: all that has parameters, so that a strategy synchronises and shards all of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from raytriever.losses.engine.batch import BatchIds
from raytriever.losses.engine.workers import Workers
from raytriever.losses.loss import Loss, LossOutput
from raytriever.models.buckets import Buckets
from raytriever.models.encoder import TokenBatch
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever, Side
from raytriever.training.parallel.grad_cache import Chunk, Encode, cached_loss, cut


class Batch(Protocol):
    """One worker's share of a global batch, on its device."""

    @property
    def queries(self) -> Buckets:
        """Tokens of its queries."""

    @property
    def passages(self) -> Buckets:
        """Tokens of its passages."""

    @property
    def ids(self) -> BatchIds:
        """Who they are."""


class Objective(nn.Module):
    """The global batch's loss, from one worker's share of it.

    Args:
        retriever: encodes queries and passages.
        loss: reduces the score matrix of the global batch.
        precision: `fp32` or `bf16`, of the encoder; weights, embeddings and loss are float32.
        chunk: what is encoded at a time, the rest by gradient caching; without it the whole batch's activations are
            kept.
    """

    def __init__(self, retriever: Retriever, loss: Loss, precision: str, chunk: Chunk | None = None) -> None:
        super().__init__()
        self.retriever, self.loss, self.precision, self.chunk = retriever, loss, precision, chunk

    def forward(self, batch: Batch, workers: Workers) -> LossOutput:
        """The loss, differentiable; the step is the same whether gradients are cached or not."""
        queries, passages = batch.queries, batch.passages
        if self.chunk is not None:
            queries, passages = cut(queries, self.chunk), cut(passages, self.chunk)

        def precision() -> AbstractContextManager[Any]:
            return autocast(self.precision, batch.ids.queries.device)

        def encode(part: TokenBatch, side: Side) -> Tensor:
            with precision():
                return self.retriever.encode(part, side).float()

        def reduce(queries: Tensor, passages: Tensor) -> LossOutput:
            output: LossOutput = self.loss(queries, passages, batch.ids, workers)
            return output

        if self.chunk is not None and torch.is_grad_enabled():
            encoder, loss = _trained(self.retriever), _trained(self.loss)
            keep = self.chunk.holds([*queries.buckets, *passages.buckets])
            return cached_loss(queries, passages, encode, precision, reduce, encoder, loss, keep)
        # Weights are cast once a part: cast once a batch, the parts' gradients would be added up in bf16.
        return reduce(_encoded(queries, "query", encode), _encoded(passages, "passage", encode))


def _encoded(texts: Buckets, side: Side, encode: Encode) -> Tensor:
    return torch.cat([encode(part, side) for part in texts.buckets])[texts.indices]


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
