"""Strategies of data-parallel training: a step, its result and its errors, its phases in seconds; and DDP.

Trained weights stay float32 and `bf16` is autocast, so every strategy trains the same model."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raytriever.errors import UserError, setting
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import LossOutput
from raytriever.models.memory import HostCopy
from raytriever.models.slices import Slice
from raytriever.training.batch import Batch, CutBatch
from raytriever.training.parallel.model_state import MOMENTS, STEP, replicated_state, restore_replicated
from raytriever.training.parallel.objective import Objective

PHASES = ("encode", "loss", "backward", "optimizer")
# torch 2.13 renamed the setting and warns of its old name.
_NEW = "forward_sync_buffers"
_SEND_BUFFERS = _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class TrainingError(UserError):
    """Training cannot continue."""


class NotFiniteError(TrainingError):
    """The loss or the gradient of a step is not finite."""


@dataclass(frozen=True)
class Update:
    """Result of a step, which may still be computed on the device.

    A loss or norm that is not finite ends training where it is read: see `finite_or_refused`.

    Args:
        output: the global batch's loss before the update.
        norm: Norm of the global batch's gradient, before clipping.
    """

    output: LossOutput
    norm: Tensor


@dataclass(frozen=True)
class StrategyInputs:
    """Values from which every strategy is built.

    Args:
        objective: on `device`, the same on every worker.
        optimizer: over its trained parameters, without state; the strategy owns it from now on.
        max_grad_norm: gradients are scaled down to this norm.
    """

    objective: Objective
    optimizer: torch.optim.Optimizer
    workers: WorkerGroup
    device: torch.device
    max_grad_norm: float


class Strategy(ABC):
    """Data-parallel training of one model; all workers make every call in the same order.

    Without further definitions, every worker has a whole copy of the model and of the optimizer's state.
    """

    def __init__(self, inputs: StrategyInputs) -> None:
        self._objective, self._optimizer, self._workers = inputs.objective, inputs.optimizer, inputs.workers
        self._device, self._max_grad_norm = inputs.device, inputs.max_grad_norm

    @abstractmethod
    def step(self, batch: Batch | CutBatch, learning_rate: float, number: int) -> Update:
        """Compute loss and gradient, clip it and update the weights. The gradient is synchronized once, cached or not.

        A step whose loss or gradient is not finite changes no parameter. It raises `NotFiniteError`, or where that
        would wait for the device, no later step changes a parameter either.
        """

    def abandon(self) -> bool:
        """Discard what a step that ran out of memory left, which changed no weight.

        Returns:
            Whether the step can be repeated in this process.
        """
        self._optimizer.zero_grad(set_to_none=True)
        for parameter, state in list(self._optimizer.state.items()):
            if not {STEP, *MOMENTS} <= state.keys():  # only some of the moments could be allocated
                del self._optimizer.state[parameter]
        return True

    @torch.no_grad()
    def measure(self, batch: Batch | CutBatch) -> LossOutput:
        """Return the loss without gradient; the mode of the module decides on dropout."""
        with self._gathered():
            output: LossOutput = self._objective(batch, self._workers)
        return output

    def state(self) -> Iterable[Slice]:
        """Return the slices of weights and moments that this worker writes; all workers' slices hold each value once.

        The slices are valid until the next step, which overwrites them.
        """
        return () if self._workers.rank else replicated_state(self._objective, self._optimizer)

    def load_state(self, slices: Iterable[Slice]) -> None:
        """Load weights and moments from the slices of all workers, written by any number of workers and any strategy.

        Every worker reads all slices; slices of one name follow each other.
        """
        restore_replicated(slices, self._objective, self._optimizer)

    def release(self) -> None:  # noqa: B027 - a whole model stays as it is
        """Leave the model whole and without hooks on every worker; the strategy is not used afterwards."""

    def _gathered(self) -> AbstractContextManager[None]:
        """Return a context in which sharded parameters are whole, as far as a step needs them."""
        return nullcontext()


class Replicas(Strategy):
    """The strategy `ddp`; on one worker, the module itself."""

    def __init__(self, inputs: StrategyInputs) -> None:
        super().__init__(inputs)
        self._guard = UpdateGuard(inputs.optimizer, inputs.device)
        self._module: nn.Module = inputs.objective
        if self._workers.size > 1 and any(parameter.requires_grad for parameter in self._module.parameters()):
            devices = [inputs.device.index] if inputs.device.type == "cuda" else None
            # Buffers are constant, so they need not be sent at every step. Gradients as views of the buckets save a
            # copy of the size of the model.
            settings: dict[str, Any] = {_SEND_BUFFERS: False, "gradient_as_bucket_view": True}
            self._module = DistributedDataParallel(self._module, device_ids=devices, **settings)
            inputs.objective.leaves_part = True

    def step(self, batch: Batch | CutBatch, learning_rate: float, number: int) -> Update:
        """See `Strategy.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        output: LossOutput = self._module(batch, self._workers)
        output.value.backward()
        norm = nn.utils.clip_grad_norm_(self._objective.parameters(), self._max_grad_norm)
        self._guard.update(output.value, norm, number)
        self._optimizer.zero_grad(set_to_none=True)
        return Update(output, norm)


# ---------------------------------------------------------------------------------------------------- results of a step


class Readout:
    """Scalars on their way from the device, in one copy that the constructor starts."""

    def __init__(self, scalars: Mapping[str, Tensor]) -> None:
        self._names = list(scalars)
        values = torch.stack([scalar.detach().double().reshape(()) for scalar in scalars.values()])
        self._copy = HostCopy(values)

    def read(self) -> dict[str, float]:
        """Return the numbers; waits until the device has computed them."""
        return dict(zip(self._names, self._copy.read().tolist(), strict=True))


class UpdateGuard:
    """Updates of the weights that leave out steps that are not finite.

    Fused AdamW has a switch on the device for it, which gradient scalers use: nobody waits for the device. With an
    optimizer that has none, the step is read first.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self._has_switch = getattr(optimizer, "_step_supports_amp_scaling", False)
        # 1 from the first step on that was not finite. Later steps, which may be finite, change nothing either.
        self._has_failed = torch.zeros((), device=device)

    def update(self, value: Tensor, norm: Tensor, number: int) -> None:
        """Update the weights if loss and norm are finite, and those of all steps before."""
        if self._has_switch:
            is_finite = torch.isfinite(torch.stack([value.detach().double(), norm.double()])).all()
            self._has_failed = torch.maximum(self._has_failed, (~is_finite).float())
            self._optimizer.found_inf = self._has_failed  # type: ignore[attr-defined]
        else:
            finite_or_refused(**Readout({"value": value, "norm": norm}).read(), number=number)
        self._optimizer.step()


def finite_or_refused(value: float, norm: float, number: int) -> None:
    """Raise `NotFiniteError` unless a step's loss and the norm of its gradient are finite."""
    if not (norm < float("inf") and abs(value) < float("inf")):
        raise NotFiniteError(
            f"the loss is {value}, its gradient's norm {norm}",
            f"step {number}",
            f"lower {setting('learning_rate')}, raise {setting('temperature')} or {setting('warmup_steps')}, or use "
            f"{setting('precision')} fp32",
        )


class Stopwatch:
    """Stopwatch of the phases of training steps.

    The encoder ends where the loss is called, the loss where it returns, the backward pass where the optimizer is
    called: two hooks on the loss and one on the optimizer measure a step of any strategy. On a GPU the marks are CUDA
    events, read with the results of the step, so that no step waits for them. With gradient caching the second encoding
    pass counts as backward; so do the synchronization and the clipping of gradients.
    """

    def __init__(self, loss: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        self._running = False
        loss.register_forward_pre_hook(lambda *_: self._mark(1))
        loss.register_forward_hook(lambda *_: self._mark(2))
        optimizer.register_step_pre_hook(lambda *_: self._mark(3))

    def start(self) -> None:
        """Start a step."""
        self._marks, self._running = [], True
        self._mark(0)

    def stop(self) -> Callable[[], dict[str, float]]:
        """End the step, and return a function that returns the seconds of each phase as `PHASE_seconds`.

        They are empty where a phase was missing. On a GPU the function is called after the device has done the step.
        """
        self._mark(4)
        self._running = False
        marks = self._marks if len(self._marks) == len(PHASES) + 1 else []
        return lambda: {
            f"{phase}_seconds": _between(*ends) for phase, ends in zip(PHASES, pairwise(marks), strict=False)
        }

    def _mark(self, number: int) -> None:
        # The optimizer may be called once per group of parameters, and validation calls the loss too.
        if not self._running or number != len(self._marks):
            return
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())


def _between(earlier: Any, later: Any) -> float:
    """Return the seconds between two marks."""
    return float(later - earlier) if isinstance(earlier, float) else float(earlier.elapsed_time(later)) / 1000
