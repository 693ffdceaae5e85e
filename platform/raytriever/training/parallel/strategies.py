"""Strategies of data-parallel training: the three calls of a step, its results and its errors; and DDP.

Trained weights stay float32 and `bf16` is autocast, so every strategy trains the same model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raytriever.core.errors import UserError, setting
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import LossOutput
from raytriever.models.checkpoint_model import Slice
from raytriever.models.device_memory import HostCopy
from raytriever.training.parallel.model_state import MOMENTS, STEP, replicated_state, restore_replicated
from raytriever.training.parallel.objective import Objective
from raytriever.training.worker_batch import Batch

# torch 2.13 renamed the setting and warns of its old name.
_NEW = "forward_sync_buffers"
_SEND_BUFFERS = _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class TrainingError(UserError):
    """Training cannot continue."""


class NotFiniteError(TrainingError):
    """The loss or the gradient of a step is not finite."""


class Strategy(ABC):
    """Data-parallel training of one model; all workers make every call in the same order.

    Without further definitions, every worker has a whole copy of the model and of the optimizer's state.

    Args:
        objective: on `device`, the same on every worker.
        optimizer: over its trained parameters, without state.
        max_grad_norm: gradients are scaled down to this norm.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        workers: WorkerGroup,
        device: torch.device,
        max_grad_norm: float,
    ) -> None:
        self._objective, self._optimizer, self._workers = objective, optimizer, workers
        self._device, self._max_grad_norm = device, max_grad_norm
        self._norm = torch.zeros((), device=device)
        # 1 from the first step on that was not finite. Later steps, which may be finite, change nothing either.
        self._has_failed = torch.zeros((), device=device)

    @abstractmethod
    def forward_backward(self, batch: Batch) -> LossOutput:
        """Return the global batch's loss, and compute its gradient, which is synchronized once, cached or not."""

    def clip_gradients(self) -> None:
        """Scale the gradient of the global batch down to the largest norm."""
        norm: Any = nn.utils.clip_grad_norm_(self._objective.parameters(), self._max_grad_norm)
        self._norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def step(self, value: Tensor, number: int) -> Tensor:
        """Update the weights, and return the norm of the gradient before clipping, which a device may still compute.

        A step whose loss `value` or gradient is not finite changes no parameter. It raises `NotFiniteError`. Where that
        would wait for the device, no later step changes a parameter either, and the error is raised where the step is
        read: fused AdamW has a switch on the device, which gradient scalers use.
        """
        norm = self._norm
        try:
            if getattr(self._optimizer, "_step_supports_amp_scaling", False):
                is_finite = torch.isfinite(torch.stack([value.detach().double(), norm.double()])).all()
                self._has_failed = torch.maximum(self._has_failed, (~is_finite).float())
                self._optimizer.found_inf = self._has_failed  # type: ignore[attr-defined]
            else:
                finite_or_refused(**HostValues({"value": value, "norm": norm}).read(), number=number)
            self._optimizer.step()
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return norm

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
    def measure(self, batch: Batch) -> LossOutput:
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

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._module: nn.Module = self._objective
        if self._workers.size > 1 and any(parameter.requires_grad for parameter in self._module.parameters()):
            devices = [self._device.index] if self._device.type == "cuda" else None
            # Buffers are constant, so they need not be sent at every step. Gradients as views of the buckets save a
            # copy of the size of the model.
            settings: dict[str, Any] = {_SEND_BUFFERS: False, "gradient_as_bucket_view": True}
            self._module = DistributedDataParallel(self._module, device_ids=devices, **settings)
            self._objective.leaves_chunk = True

    def forward_backward(self, batch: Batch) -> LossOutput:
        """See `Strategy.forward_backward`."""
        output: LossOutput = self._module(batch, self._workers)
        output.value.backward()
        return output


# ---------------------------------------------------------------------------------------------------- results of a step


class HostValues:
    """Scalars on their way from the device, in one copy that the constructor starts."""

    def __init__(self, scalars: Mapping[str, Tensor]) -> None:
        self._names = list(scalars)
        values = torch.stack([scalar.detach().double().reshape(()) for scalar in scalars.values()])
        self._copy = HostCopy(values)

    def read(self) -> dict[str, float]:
        """Return the numbers; waits until the device has computed them."""
        return dict(zip(self._names, self._copy.read().tolist(), strict=True))


def finite_or_refused(value: float, norm: float, number: int) -> None:
    """Raise `NotFiniteError` unless a step's loss and the norm of its gradient are finite."""
    if not (norm < float("inf") and abs(value) < float("inf")):
        raise NotFiniteError(
            f"the loss is {value}, its gradient's norm {norm}",
            f"step {number}",
            f"lower {setting('learning_rate')}, raise {setting('temperature')} or {setting('warmup_steps')}, or use "
            f"{setting('precision')} fp32",
        )
