"""DDP: every worker has a whole copy of the model, and gradients are averaged."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raytriever.losses.loss import LossOutput
from raytriever.training.batch import Batch, CutBatch
from raytriever.training.parallel.strategy import Strategy, StrategyInputs, Update, UpdateGuard

# torch 2.13 renamed the setting and warns of its old name.
_NEW = "forward_sync_buffers"
_SEND_BUFFERS = _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"


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
