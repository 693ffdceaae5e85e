"""DDP: every worker has a whole copy of the model, and gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raytriever.losses.loss import LossOutput
from raytriever.training.batch import Batch, CutBatch
from raytriever.training.parallel.model_state import Slice, replicated_state, restore_replicated
from raytriever.training.parallel.strategy import StrategyInputs, Update, UpdateGuard, discard_step

# torch 2.13 renamed the setting and warns of its old name.
_NEW = "forward_sync_buffers"
_SEND_BUFFERS = _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class Replicas:
    """The strategy `ddp`; on one worker, the module itself."""

    def __init__(self, inputs: StrategyInputs) -> None:
        self._objective, self._optimizer, self._workers = inputs.objective, inputs.optimizer, inputs.workers
        self._max_grad_norm = inputs.max_grad_norm
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

    def abandon(self) -> bool:
        """See `Strategy.abandon`."""
        discard_step(self._optimizer)
        return True

    @torch.no_grad()
    def measure(self, batch: Batch | CutBatch) -> LossOutput:
        """See `Strategy.measure`."""
        output: LossOutput = self._objective(batch, self._workers)
        return output

    def state(self) -> Iterable[Slice]:
        """See `Strategy.state`: every worker has the whole state, and the first one writes it."""
        return () if self._workers.rank else replicated_state(self._objective, self._optimizer)

    def load_state(self, slices: Iterable[Slice]) -> None:
        """See `Strategy.load_state`."""
        restore_replicated(slices, self._objective, self._optimizer)

    def release(self) -> None:
        """See `Strategy.release`: the model is whole already."""
