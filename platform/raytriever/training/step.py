"""One optimiser step, and one look at a loss without it. Nothing here knows how workers were started."""

from __future__ import annotations

import torch
from torch import nn

from raytriever.errors import UserError
from raytriever.losses.registry import Loss, LossOutput
from raytriever.losses.workers import Workers
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever
from raytriever.training.batches import Batch


class TrainingError(UserError):
    """Training cannot go on."""


class Objective(nn.Module):
    """Encoder and loss as one module: all that has parameters, so that a strategy synchronises all of it.

    Args:
        retriever: encodes queries and passages.
        loss: reduces the score matrix of the global batch.
        precision: `fp32` or `bf16`, of the encoder; embeddings and loss are float32.
    """

    def __init__(self, retriever: Retriever, loss: Loss, precision: str) -> None:
        super().__init__()
        self.retriever, self.loss, self.precision = retriever, loss, precision

    def forward(self, batch: Batch, workers: Workers) -> LossOutput:
        """The global batch's loss, from this worker's share of it."""
        with autocast(self.precision, batch.ids.queries.device):
            queries, passages = self.retriever(batch.queries, batch.passages)
        return self.loss(queries.float(), passages.float(), batch.ids, workers)


def optimise(
    output: LossOutput, module: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float, step: int
) -> float:
    """Backward, clip, update; answers the gradient's norm before clipping.

    Raises:
        TrainingError: the loss or the gradient is not finite; no parameter has been changed.
    """
    output.value.backward()
    norm = float(nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm))
    value = output.value.item()
    if not (norm < float("inf") and abs(value) < float("inf")):
        raise TrainingError(
            f"the loss is {value}, its gradient's norm {norm}",
            f"step {step}",
            "lower --learning-rate, raise --temperature or --warmup-steps, or use --precision fp32",
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
