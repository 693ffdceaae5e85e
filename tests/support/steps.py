"""A step outside of the training loop, as `Trainer.step` does it."""

from __future__ import annotations

from torch import Tensor

from raytriever.losses.loss import LossOutput
from raytriever.training.batch_loader import Batch
from raytriever.training.optimizer_and_schedule import set_learning_rate
from raytriever.training.parallel.strategies import Strategy


def take_step(strategy: Strategy, batch: Batch, rate: float, number: int) -> tuple[LossOutput, Tensor]:
    """Return the loss before the step, and the norm of its gradient before clipping."""
    set_learning_rate(strategy._optimizer, rate)
    output = strategy.forward_backward(batch)
    strategy.clip_gradients()
    return output, strategy.step(output.value, number)
