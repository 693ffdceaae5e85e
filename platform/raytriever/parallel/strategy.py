"""How the copies of a model on several workers stay one model, as a training step sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import distributed

from raytriever.errors import ConfigError, UserError
from raytriever.losses.loss import LossOutput
from raytriever.losses.workers import ALONE, Workers
from raytriever.options import did_you_mean
from raytriever.parallel.gather import GroupWorkers
from raytriever.parallel.objective import Batch, Objective
from raytriever.parallel.shards import Slice

STRATEGIES = ("ddp", "zero0", "zero1", "zero2", "zero3")


class TrainingError(UserError):
    """Training cannot go on."""


class NotFiniteError(TrainingError):
    """A step's loss or gradient is not finite."""


@dataclass(frozen=True)
class Update:
    """What a step did.

    Args:
        output: the global batch's loss before the update.
        norm: of the global batch's gradient, before clipping.
    """

    output: LossOutput
    norm: float


class Strategy(Protocol):
    """One model on all workers of a group; every worker makes every call, in the same order."""

    def step(self, batch: Batch, learning_rate: float, number: int) -> Update:
        """Loss, gradient, clipping, update; the gradient is synchronised once, cached or not.

        Args:
            batch: this worker's share, on its device.
            learning_rate: of this step.
            number: of this step, for errors.

        Raises:
            TrainingError: the loss or the gradient is not finite; no parameter has been changed.
        """

    def measure(self, batch: Batch) -> LossOutput:
        """The loss alone, without gradient; whether dropout is drawn is the module's mode."""

    def state(self) -> Iterable[Slice]:
        """What this worker writes of weights and moments: all workers' slices together hold each value once.

        The slices are valid until the next step, which overwrites them.
        """

    def load_state(self, slices: Iterable[Slice]) -> None:
        """Put weights and moments back, from the slices of all workers that wrote, however many and of whatever
        strategy they were; every worker is given all, those of one name together.

        Raises:
            StorageError: the state is not of this model, or not whole.
        """


def current_workers() -> Workers:
    """The process group of this process, or a group of one where there is none."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return GroupWorkers()
    return ALONE


def build_strategy(
    name: str,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    workers: Workers,
    device: torch.device,
    max_grad_norm: float,
    offload: bool = False,
) -> Strategy:
    """The strategy of a name; objective and optimiser belong to it from here on.

    Args:
        name: one of `STRATEGIES`.
        objective: on `device`, the same on every worker.
        optimizer: over its trained parameters.
        workers: the data-parallel group.
        device: of this worker.
        max_grad_norm: gradients are scaled down to this norm.
        offload: whether the optimiser works in the processor's memory; of `zero1` to `zero3`.

    Raises:
        ConfigError: there is no such strategy, it cannot offload, or its package is not installed.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown value {name!r}", "--strategy", did_you_mean(name, STRATEGIES))
    if offload and name in ("ddp", "zero0"):
        raise ConfigError(f"{name} shards no optimiser that could be offloaded", "--strategy", "use zero1, 2 or 3")
    if name == "ddp":
        from raytriever.parallel.replicas import Replicas

        return Replicas(objective, optimizer, workers, device, max_grad_norm)
    from raytriever.parallel.zero import Zero

    return Zero(int(name.removeprefix("zero")), objective, optimizer, workers, device, max_grad_norm, offload)


def finite_or_refused(value: float, norm: float, number: int) -> None:
    """Raise `NotFiniteError` unless a step's loss and the norm of its gradient are finite."""
    if not (norm < float("inf") and abs(value) < float("inf")):
        raise NotFiniteError(
            f"the loss is {value}, its gradient's norm {norm}",
            f"step {number}",
            "lower --learning-rate, raise --temperature or --warmup-steps, or use --precision fp32",
        )
