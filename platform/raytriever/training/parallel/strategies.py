"""Strategies of data-parallel training: their interface, the errors of a step, and DDP.

Trained weights stay float32, and `bf16` means autocast, so every strategy trains the same model."""

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
from raytriever.training.batch_loader import Batch
from raytriever.training.parallel.model_state import ADAMW_STATE, STEP, replicated_state, restore_replicated
from raytriever.training.parallel.objective import Objective

# torch 2.13 renamed this argument of DDP, and warns about the old name.
_NEW = "forward_sync_buffers"
_SEND_BUFFERS = _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class TrainingError(UserError):
    """Training cannot continue."""


class NotFiniteError(TrainingError):
    """The loss or the gradient of a step is NaN or infinite."""


class Strategy(ABC):
    """Data-parallel training of one model; all workers make every call in the same order.

    Every worker has a full copy of the model and of the optimizer's state, unless a subclass shards them.

    Args:
        objective: module on `device`, the same on every worker.
        optimizer: optimizer of the objective's trained parameters; it has no state yet.
        max_grad_norm: gradients with a larger norm are scaled down to this norm.
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
        # Becomes 1 at the first step whose loss or gradient is NaN or infinite. After that, no step changes a weight.
        self._has_failed = torch.zeros((), device=device)

    @abstractmethod
    def forward_backward(self, batch: Batch) -> LossOutput:
        """Return the loss of the global batch, and compute its gradient, which the workers synchronize once."""

    def clip_gradients(self) -> None:
        """Scale the gradient of the global batch down to `max_grad_norm`, if its norm is larger."""
        norm: Any = nn.utils.clip_grad_norm_(self._objective.parameters(), self._max_grad_norm)
        self._norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def step(self, value: Tensor, number: int) -> Tensor:
        """Update the weights, and return the norm of the gradient before clipping. A GPU may still be computing it.

        If the loss `value` or the gradient is NaN or infinite, the step changes no parameter and raises
        `NotFiniteError`. For this check, the CPU waits for the GPU. It does not wait if the optimizer reads a flag on
        the GPU (`found_inf` of fused AdamW). Then no step changes a parameter, and `StepLines` raises the error."""
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
        """Discard the partial results of a step that ran out of memory before it changed a weight. Return True if the
        step can be repeated in this process."""
        self._optimizer.zero_grad(set_to_none=True)
        for parameter, state in list(self._optimizer.state.items()):
            if not {STEP, *ADAMW_STATE} <= state.keys():  # memory ran out before all moments were allocated
                del self._optimizer.state[parameter]
        return True

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> LossOutput:
        """Return the loss without gradient. Dropout is applied if the module is in training mode."""
        with self._gathered():
            output: LossOutput = self._objective(batch, self._workers)
        return output

    def state(self) -> Iterable[Slice]:
        """Return the slices of weights and moments that this worker writes to a checkpoint.

        Each value is in one slice of one worker. Slices are valid until the next step, which overwrites them."""
        return () if self._workers.rank else replicated_state(self._objective, self._optimizer)

    def load_state(self, slices: Iterable[Slice]) -> None:
        """Load weights and moments from the slices of any number of workers and of any strategy.

        Every worker reads all slices. Slices of the same name follow each other."""
        restore_replicated(slices, self._objective, self._optimizer)

    def release(self) -> None:  # noqa: B027 - an unsharded model needs nothing
        """Restore the unsharded model, without hooks, on every worker. Do not use the strategy afterwards."""

    def _gathered(self) -> AbstractContextManager[None]:
        """Return a context in which the sharded parameters that a step needs as a whole are gathered."""
        return nullcontext()


class Replicas(Strategy):
    """Strategy `ddp`: DistributedDataParallel, or the plain module with one worker."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._module: nn.Module = self._objective
        if self._workers.size > 1 and any(parameter.requires_grad for parameter in self._module.parameters()):
            devices = [self._device.index] if self._device.type == "cuda" else None
            # Buffers are constant, so they need not be sent in every step. If gradients are views of DDP's buckets, no
            # copy as large as the model is needed.
            settings: dict[str, Any] = {_SEND_BUFFERS: False, "gradient_as_bucket_view": True}
            self._module = DistributedDataParallel(self._module, device_ids=devices, **settings)
            self._objective.leaves_chunk = True

    def forward_backward(self, batch: Batch) -> LossOutput:
        """See `Strategy.forward_backward`."""
        output: LossOutput = self._module(batch, self._workers)
        output.value.backward()
        return output


class HostValues:
    """Scalars on a device. The constructor starts to copy them all to the CPU in one transfer."""

    def __init__(self, scalars: Mapping[str, Tensor]) -> None:
        self._names = list(scalars)
        values = torch.stack([scalar.detach().double().reshape(()) for scalar in scalars.values()])
        self._copy = HostCopy(values)

    def read(self) -> dict[str, float]:
        """Wait until the device has computed the numbers. Return them by name."""
        return dict(zip(self._names, self._copy.read().tolist(), strict=True))


def finite_or_refused(value: float, norm: float, number: int) -> None:
    """Raise `NotFiniteError` unless a step's loss and the norm of its gradient are finite."""
    if not (norm < float("inf") and abs(value) < float("inf")):
        raised = f"{setting('temperature')} or {setting('warmup_steps')}"
        remedy = f"lower {setting('learning_rate')}, raise {raised}, or use {setting('precision')} fp32"
        raise NotFiniteError(f"the loss is {value}, the norm of its gradient is {norm}", f"step {number}", remedy)
