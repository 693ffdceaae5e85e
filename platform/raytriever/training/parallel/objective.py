"""Encoder and loss in one module, so that a strategy synchronizes and shards the parameters of both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.false_negative_mask import GuideEmbeddings
from raytriever.losses.loss import Loss, LossOutput
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import SCORE_LOSSES
from raytriever.models.packing import Buckets, TokenBatch, texts_of, tokens_of
from raytriever.models.prompts import Side
from raytriever.models.retriever import Retriever
from raytriever.training.batch_loader import Batch, Passes
from raytriever.training.parallel.gradient_caching import Encode, cached_loss, count_kept
from raytriever.training.parallel.out_of_memory import Vote


def level(texts: Buckets, vote: Vote) -> Buckets:
    """Repeat the first chunk until all workers have the same number of chunks. All workers call this function.

    The first chunk has the shortest texts. `indices` leaves the repetitions out, so they have no effect on the loss."""
    chunks = len(texts.buckets)
    return Buckets(texts.buckets + texts.buckets[:1] * (vote.maximum(chunks) - chunks), texts.indices)


class Objective(nn.Module):
    """Module that computes the loss of the global batch from one worker's local batch.

    Args:
        retriever: the encoder that is trained.
        loss: loss of the score matrix of the global batch.
        precision: `fp32` or `bf16`, the autocast precision of the encoder. Trained weights, embeddings and loss are
            float32.
        vote: vote of the workers on whether one ran out of memory; None for one worker.
        guide: returns the guide's embeddings of a chunk; None without a guide. It is a function, not a submodule, so no
            strategy trains, shards or stores its weights.

    Attributes:
        chunks_communicate: each chunk gathers weights and reduces gradients itself (FSDP2). Then all workers encode the
            same number of chunks, and each chunk has its own backward pass in gradient caching. If a worker runs out
            of memory, all are restarted, because the others wait for it within a chunk.
        leaves_chunk: gradient caching leaves the backward pass of its smallest chunk to the backward pass of the loss
            (DDP).
    """

    def __init__(
        self, retriever: Retriever, loss: Loss, precision: str, vote: Vote | None = None, guide: Encode | None = None
    ) -> None:
        super().__init__()
        self.retriever, self.loss, self.precision = retriever, loss, precision
        self._vote, self._guide = vote or Vote(ALONE), guide
        self.chunks_communicate = self.leaves_chunk = False

    def forward(self, batch: Batch, workers: WorkerGroup) -> LossOutput:
        """Return the differentiable loss. It is the same with and without gradient caching."""
        passes: Passes = [(batch.queries, "query"), (batch.passages, "passage")]
        tokens = sum(map(tokens_of, (*batch.queries.buckets, *batch.passages.buckets)))
        if batch.chunk is None or (tokens <= batch.chunk and not self.chunks_communicate):
            passes = self.retriever.passes(batch.queries, batch.passages)  # packed queries and passages share one pass
        if self.chunks_communicate:
            passes = [(level(texts, self._vote), side) for texts, side in passes]
        chunks = [(chunk, side) for texts, side in passes for chunk in texts.buckets]
        device, guide = batch.queries.indices.device, self._guide_embeddings(batch)
        precision = partial(torch.autocast, device.type, torch.bfloat16, enabled=self.precision == "bf16")

        def encode(chunk: TokenBatch, side: Side) -> Tensor:
            with precision():
                return self.retriever.encode(chunk, side).float()

        def reduce(embeddings: Tensor) -> LossOutput:
            output: LossOutput = self.loss(*_in_order(embeddings, passes, batch), batch.relevance, workers, guide)
            return output

        if batch.chunk is None or not torch.is_grad_enabled():
            # Each chunk casts the weights again. If all chunks shared a cast, gradients would be summed in bf16.
            return reduce(torch.cat([encode(chunk, side) for chunk, side in chunks]))
        return cached_loss(
            chunks,
            encode,
            precision,
            reduce,
            _trained(self.retriever),
            _trained(self.loss),
            None if self.chunks_communicate else self._vote,
            # Chunks that communicate run in the same order on all workers, so each keeps one chunk's activations.
            1 if self.chunks_communicate else count_kept(chunks, batch.chunk),
            self.leaves_chunk,
        )

    @torch.no_grad()
    def _guide_embeddings(self, batch: Batch) -> GuideEmbeddings | None:
        encode = self._guide
        if encode is None:
            return None

        def encode_all() -> Tensor:
            return torch.cat([encode(chunk, side) for texts, side in batch.guide for chunk in texts.buckets])

        embeddings = encode_all() if batch.chunk is None else self._vote.run(encode_all)
        return GuideEmbeddings(*_in_order(embeddings, batch.guide, batch))


def with_default_operands(config: LossConfig, precision: str, device: torch.device) -> LossConfig:
    """Let the loss multiply in TF32 if a GPU encodes in bf16, unless the user chose a precision.

    On an H100, the products of `mw` then take a fifth of their float32 time, and the gradient changes by 1e-4 of its
    largest component. Embeddings that are computed in bf16 differ by more than that."""
    has_products = not set(SCORE_LOSSES).isdisjoint(config.terms)
    if config.loss_precision or precision != "bf16" or device.type != "cuda" or not has_products:
        return config
    return replace(config, loss_precision="tf32")


def _in_order(embeddings: Tensor, passes: Passes, batch: Batch) -> tuple[Tensor, ...]:
    """Sort the embeddings of all chunks into the order of the batch, and split them into queries and passages."""
    by_pass = embeddings.split([sum(map(texts_of, texts.buckets)) for texts, _ in passes])
    ordered = torch.cat([embeddings[texts.indices] for embeddings, (texts, _) in zip(by_pass, passes, strict=True)])
    return ordered.split([len(batch.queries.indices), len(batch.passages.indices)])


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
