"""Strategies of data-parallel training: DDP, and DeepSpeed's ZeRO stages 0 to 3.

DDP keeps a whole copy of the model on each worker and averages gradients. ZeRO shards the optimizer state (1), also
the gradients (2), also the weights (3) over the workers (Rajbhandari et al., 2020, arXiv:1910.02054); stage 0 shards
nothing. Trained weights stay float32 at every stage and `bf16` is autocast, so every strategy trains the same model.

Stage 3: the model is loaded whole into the memory of each worker, then sharded. From then on a worker holds its shard
between steps and the whole model within one step (`_gathered`), because each chunk of a batch would gather it again."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from raytriever.errors import ConfigError, UserError
from raytriever.losses.engine.workers import ALONE, Workers
from raytriever.losses.loss import LossOutput
from raytriever.options import did_you_mean
from raytriever.training.config import STRATEGIES
from raytriever.training.parallel.model_state import Slice, replicated_state, restore_replicated
from raytriever.training.parallel.objective import Batch, Objective
from raytriever.training.parallel.process_group import GroupWorkers
from raytriever.training.parallel.zero_state import restore_sharded, sharded_state


class TrainingError(UserError):
    """Training cannot continue."""


class NotFiniteError(TrainingError):
    """The loss or the gradient of a step is not finite."""


@dataclass(frozen=True)
class Update:
    """Result of a step.

    Args:
        output: the global batch's loss before the update.
        norm: of the global batch's gradient, before clipping.
    """

    output: LossOutput
    norm: float


class Strategy(Protocol):
    """Data-parallel training of one model; all workers make every call in the same order."""

    def step(self, batch: Batch, learning_rate: float, number: int) -> Update:
        """Compute loss and gradient, clip it and update the weights. The gradient is synchronized once, cached or not.

        Args:
            batch: this worker's share, on its device.
            learning_rate: of this step.
            number: of this step, for errors.

        Raises:
            TrainingError: the loss or the gradient is not finite; no parameter has been changed.
        """

    def measure(self, batch: Batch) -> LossOutput:
        """Return the loss without gradient; the mode of the module decides on dropout."""

    def state(self) -> Iterable[Slice]:
        """Return the slices of weights and moments that this worker writes; all workers' slices hold each value once.

        The slices are valid until the next step, which overwrites them.
        """

    def load_state(self, slices: Iterable[Slice]) -> None:
        """Load weights and moments from the slices of all workers, written by any number of workers and any strategy.

        Every worker reads all slices; slices of one name follow each other.

        Raises:
            StorageError: the state is of another model, or incomplete.
        """


def current_workers() -> Workers:
    """Return the process group of this process, or a group of one."""
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
    """Return the strategy of a name, which takes over objective and optimizer.

    Args:
        name: one of `STRATEGIES`.
        objective: on `device`, the same on every worker.
        optimizer: over its trained parameters.
        workers: the data-parallel group.
        device: of this worker.
        max_grad_norm: gradients are scaled down to this norm.
        offload: whether the optimizer's state is in CPU memory; only `zero1` to `zero3`.

    Raises:
        ConfigError: there is no such strategy, it cannot offload, or its package is not installed.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown value {name!r}", "--strategy", did_you_mean(name, STRATEGIES))
    if offload and name in ("ddp", "zero0"):
        raise ConfigError(
            f"{name} does not shard the optimizer, so it cannot offload it", "--strategy", "use zero1, 2 or 3"
        )
    if name == "ddp":
        return Replicas(objective, optimizer, workers, device, max_grad_norm)

    return Zero(int(name.removeprefix("zero")), objective, optimizer, workers, device, max_grad_norm, offload)


def finite_or_refused(value: float, norm: float, number: int) -> None:
    """Raise `NotFiniteError` unless a step's loss and the norm of its gradient are finite."""
    if not (norm < float("inf") and abs(value) < float("inf")):
        raise NotFiniteError(
            f"the loss is {value}, its gradient's norm {norm}",
            f"step {number}",
            "lower --learning-rate, raise --temperature or --warmup-steps, or use --precision fp32",
        )


# torch 2.13 renamed the setting and warns of its old name.
_NEW = "forward_sync_buffers"
_SEND_BUFFERS = _NEW if _NEW in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class Replicas:
    """The strategy `ddp`; on one worker, the module itself."""

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        workers: Workers,
        device: torch.device,
        max_grad_norm: float,
    ) -> None:
        self._objective, self._optimizer, self._workers = objective, optimizer, workers
        self._max_grad_norm = max_grad_norm
        self._module: nn.Module = objective
        if workers.size > 1 and any(parameter.requires_grad for parameter in objective.parameters()):
            devices = [device.index] if device.type == "cuda" else None
            # Buffers are constant, so they need not be sent at every step. Gradients as views of the buckets save a
            # copy of the size of the model.
            settings: dict[str, Any] = {_SEND_BUFFERS: False, "gradient_as_bucket_view": True}
            self._module = DistributedDataParallel(objective, device_ids=devices, **settings)

    def step(self, batch: Batch, learning_rate: float, number: int) -> Update:
        """See `Strategy.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        output: LossOutput = self._module(batch, self._workers)
        output.value.backward()
        norm = float(nn.utils.clip_grad_norm_(self._objective.parameters(), self._max_grad_norm))
        finite_or_refused(output.value.item(), norm, number)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return Update(output, norm)

    @torch.no_grad()
    def measure(self, batch: Batch) -> LossOutput:
        """See `Strategy.measure`."""
        output: LossOutput = self._objective(batch, self._workers)
        return output

    def state(self) -> Iterable[Slice]:
        """See `Strategy.state`: every worker has the whole state, and the first one writes it."""
        return () if self._workers.rank else replicated_state(self._objective, self._optimizer)

    def load_state(self, slices: Iterable[Slice]) -> None:
        """See `Strategy.load_state`."""
        restore_replicated(slices, self._objective, self._optimizer)


# Values per message; DeepSpeed's default is ten times as many and reserves 2 GB of float32.
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
        offload: whether the optimizer's state is in CPU memory.

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
            zero["stage3_param_persistence_threshold"] = 0  # no parameter stays gathered between steps
        if offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": device.type == "cuda"}
        self._engine = self._deepspeed.initialize(
            model=objective,
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": 1,  # required by DeepSpeed; not used
                "gradient_accumulation_steps": 1,
                "gradient_clipping": max_grad_norm if stage else 0.0,
                "zero_optimization": zero,
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
                "steps_per_print": sys.maxsize,
            },
        )[0]
        if stage == 3:
            # Its hooks would gather and free the parameters of every module for every chunk.
            self._engine.optimizer.parameter_offload.destroy()

    def step(self, batch: Batch, learning_rate: float, number: int) -> Update:
        """See `Strategy.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        with self._gathered():
            output: LossOutput = self._engine(batch, self._workers)
            value = output.value.item()
            finite_or_refused(value, 0.0, number)
            self._engine.backward(output.value)
        if self._stage:
            # Where the norm is not finite, the sharded optimizer does not change its parameters.
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
        with self._gathered():
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
    def _gathered(self) -> Iterator[None]:
        """Gather sharded parameters once for all chunks of a step."""
        if self._stage < 3:
            yield
            return
        with self._deepspeed.zero.GatheredParameters(self._objective.parameters()):
            yield


def _deepspeed(device: torch.device) -> Any:
    """Return DeepSpeed for a device, with a process group also for one worker."""
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
