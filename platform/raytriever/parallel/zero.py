"""DeepSpeed's ZeRO: the optimiser's state (1), the gradients too (2), the weights too (3) are sharded over the workers
(Rajbhandari et al., 2020, arXiv:1910.02054). Stage 0 shards nothing: DDP by DeepSpeed.

Weights stay float32 at every stage and `bf16` is autocast, as under `ddp`, so every strategy trains the same model.
Stage 3: the model is loaded whole into each worker's memory, then sharded; from there on a worker holds its share
between steps and the whole model within one (`_held`), for every part of a batch would gather it anew.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn

from raytriever.errors import ConfigError
from raytriever.losses.loss import LossOutput
from raytriever.losses.workers import Workers
from raytriever.parallel.objective import Batch, Objective
from raytriever.parallel.shards import Slice, replicated_state, restore_replicated
from raytriever.parallel.strategy import Update, finite_or_refused
from raytriever.parallel.zero_state import restore_sharded, sharded_state

# Values sent at a time; DeepSpeed's default of ten times as many reserves 2 GB of float32.
_BUCKET = 50_000_000


class Zero:
    """The strategies `zero0` to `zero3`.

    Args:
        stage: 0 to 3.
        objective: on `device`, the same on every worker.
        optimizer: over its trained parameters.
        workers: the data-parallel group.
        device: of this worker.
        max_grad_norm: gradients are scaled down to this norm.
        offload: whether the optimiser's state stays in the processor's memory.

    Raises:
        ConfigError: DeepSpeed is not installed.
    """

    def __init__(
        self,
        stage: int,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        workers: Workers,
        device: torch.device,
        max_grad_norm: float,
        offload: bool = False,
    ) -> None:
        self._deepspeed = _deepspeed(device)
        self._stage, self._objective, self._optimizer, self._workers = stage, objective, optimizer, workers
        self._max_grad_norm = max_grad_norm
        zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": _BUCKET, "allgather_bucket_size": _BUCKET}
        if stage == 3:
            zero["stage3_param_persistence_threshold"] = 0  # none stays gathered between steps
        if offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": device.type == "cuda"}
        self._engine = self._deepspeed.initialize(
            model=objective,
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": 1,  # asked for; nothing here is counted in it
                "gradient_accumulation_steps": 1,
                "gradient_clipping": max_grad_norm if stage else 0.0,
                "zero_optimization": zero,
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
                "steps_per_print": sys.maxsize,
            },
        )[0]
        if stage == 3:
            # The hooks that gather and free every module's parameters: here they would do so for every part.
            self._engine.optimizer.parameter_offload.destroy()

    def step(self, batch: Batch, learning_rate: float, number: int) -> Update:
        """See `Strategy.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        with self._held():
            output: LossOutput = self._engine(batch, self._workers)
            value = output.value.item()
            finite_or_refused(value, 0.0, number)
            self._engine.backward(output.value)
        if self._stage:
            # Where the norm is not finite, the sharded optimiser leaves its parameters alone.
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm())
            finite_or_refused(value, norm, number)
        else:
            norm = float(nn.utils.clip_grad_norm_(self._objective.parameters(), self._max_grad_norm))
            finite_or_refused(value, norm, number)
            self._engine.step()
        return Update(output, norm)

    @torch.no_grad()
    def measure(self, batch: Batch) -> LossOutput:
        """See `Strategy.measure`."""
        with self._held():
            output: LossOutput = self._objective(batch, self._workers)
        return output

    def state(self) -> Iterable[Slice]:
        """See `Strategy.state`."""
        if self._stage:
            return sharded_state(self._stage, self._objective, self._engine.optimizer, self._workers.rank)
        return () if self._workers.rank else replicated_state(self._objective, self._optimizer)

    def load_state(self, slices: Iterable[Slice]) -> None:
        """See `Strategy.load_state`."""
        if self._stage:
            restore_sharded(slices, self._stage, self._objective, self._engine.optimizer, self._workers.rank)
        else:
            restore_replicated(slices, self._objective, self._optimizer)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Gather sharded parameters once and keep them, however many parts are encoded."""
        if self._stage < 3:
            yield
            return
        with self._deepspeed.zero.GatheredParameters(self._objective.parameters()):
            yield


def _deepspeed(device: torch.device) -> Any:
    """DeepSpeed, on the device that is wanted, with a process group even where there is one worker."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))  # DeepSpeed picks its device by it
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            "DeepSpeed is not installed", "--strategy", "pip install 'raytriever[deepspeed]', or use --strategy ddp"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`torch.distributed.(all_gather_into|reduce_scatter)_tensor`", FutureWarning)
    # Its own kernel for collectives in shared memory is compiled for up to a minute, and gloo is no slower.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    return deepspeed
