"""DeepSpeed's ZeRO stages 1 to 3, and the slices of the state that DeepSpeed (0.19) shards.

Stage 1 shards the optimizer state over the workers. Stage 2 also shards the gradients, and stage 3 also the weights
(Rajbhandari et al., 2020, arXiv:1910.02054).

Stage 3 first loads the whole model into the memory of each worker, then shards it. A worker has its shard between
steps, and the whole model during a step (`_gathered`). Otherwise each chunk of a batch would gather the model again.

Slices: stages 1 and 2 concatenate all parameters of a group, and each worker has a range of the result. The attribute
`_hp_mapping` of a parameter has the position of its slice. In stage 3, each worker has a slice of each parameter. All
slices are padded to the same length. The optimizer has moments for the float32 tensors of these ranges. DeepSpeed's own
checkpoints are not used, because they are pickled and tied to the number of workers."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, setting
from raytriever.losses.distributed import ensure_group
from raytriever.losses.loss import LossOutput
from raytriever.models.checkpoint_model import Slice
from raytriever.training.batch_loader import Batch
from raytriever.training.memory.memory_of_states import ZERO_BUCKET
from raytriever.training.parallel.model_state import STEP, device_of_steps, gathered, restore, shape_of, slices_of
from raytriever.training.parallel.strategies import Strategy, finite_or_refused


class Zero(Strategy):
    """Strategies `zero1` to `zero3`."""

    def __init__(self, stage: int, *args: Any, offload: bool = False) -> None:
        super().__init__(*args)
        self._deepspeed = _deepspeed(self._device)
        self._stage = stage
        zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": ZERO_BUCKET, "allgather_bucket_size": ZERO_BUCKET}
        if stage == 3:
            zero["stage3_param_persistence_threshold"] = 0  # no parameter stays gathered between steps
        if offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": self._device.type == "cuda"}
        self._engine = self._deepspeed.initialize(
            model=self._objective,
            optimizer=self._optimizer,
            config={
                "train_micro_batch_size_per_gpu": 1,  # required by DeepSpeed; not used
                "gradient_accumulation_steps": 1,
                "gradient_clipping": self._max_grad_norm,
                "zero_optimization": zero,
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
                "steps_per_print": sys.maxsize,
            },
        )[0]
        if stage == 3:
            # Remove DeepSpeed's hooks, which would gather and free the parameters of every module for every chunk.
            self._engine.optimizer.parameter_offload.destroy()

    def forward_backward(self, batch: Batch) -> LossOutput:
        """See `Strategy.forward_backward`."""
        with self._gathered():
            output: LossOutput = self._engine(batch, self._workers)
            self._engine.backward(output.value)
        return output

    def clip_gradients(self) -> None:
        """Do nothing, because DeepSpeed clips in its own step."""

    def step(self, value: Tensor, number: int) -> Tensor:
        """See `Strategy.step`."""
        finite_or_refused(value.item(), 0.0, number)
        # If the norm is NaN or infinite, DeepSpeed's optimizer changes no parameter.
        self._engine.step()
        norm = float(self._engine.get_global_grad_norm())
        finite_or_refused(value.item(), norm, number)
        return value.new_full((), norm)

    def state(self) -> Iterable[Slice]:
        """See `Strategy.state`."""
        return sharded_state(self._stage, self._objective, self._engine.optimizer, self._workers.rank)

    def load_state(self, slices: Iterable[Slice]) -> None:
        """See `Strategy.load_state`."""
        restore_sharded(slices, self._stage, self._objective, self._engine.optimizer, self._workers.rank)

    def release(self) -> None:
        """See `Strategy.release`."""
        for parameter in self._objective.parameters():
            with gathered(parameter) as whole:
                values = whole.clone()
            parameter.data = values

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        if self._stage < 3:
            yield
            return
        with self._deepspeed.zero.GatheredParameters(self._objective.parameters()):
            yield


def _deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for a device, with a process group even for one worker."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))  # DeepSpeed chooses its device by this
    try:
        import deepspeed
    except ImportError as error:
        remedy = f"install it: pip install 'raytriever[deepspeed]', or use {setting('strategy')} ddp"
        raise ConfigError("DeepSpeed is not installed", setting("strategy"), remedy) from error
    ensure_group(device)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "`torch.distributed.(all_gather_into|reduce_scatter)_tensor`", FutureWarning)
    # DeepSpeed's kernel for collectives in shared memory takes up to a minute to compile, and gloo is no slower.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@dataclass(frozen=True)
class _Position:
    flat: Tensor
    offset: int
    start: int
    length: int

    def of(self, flat: Tensor) -> Tensor:
        """Return this slice of `flat`, which is the flat tensor or one of its moments."""
        return flat.detach()[self.offset : self.offset + self.length]


def sharded_state(stage: int, module: nn.Module, optimizer: Any, rank: int) -> Iterator[Slice]:
    """Yield this worker's slices of the trained weights and of their moments."""
    for name, parameter in module.named_parameters():
        shape = shape_of(parameter)
        position = _position_of(stage, parameter, optimizer, rank)
        if position is None:
            continue
        state = optimizer.optimizer.state.get(position.flat, {})
        optimizer_state = {key: value if key == STEP else position.of(value) for key, value in state.items()}
        yield from slices_of(name, position.of(position.flat), position.start, shape, optimizer_state)


@torch.no_grad()
def restore_sharded(slices: Iterable[Slice], stage: int, module: nn.Module, optimizer: Any, rank: int) -> None:
    """Load a state. Every worker reads all slices and keeps its own slices."""

    def put(name: str, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
        if not kind:
            _put_weights(stage, parameter, values)
        position = _position_of(stage, parameter, optimizer, rank)
        if position is None:
            return
        own = values.flatten()[position.start : position.start + position.length]
        if not kind:
            position.of(position.flat).copy_(own)
            return
        state = optimizer.optimizer.state.setdefault(position.flat, {})
        if kind == STEP:
            state[STEP] = values.to(device_of_steps(optimizer.optimizer, position.flat), copy=True)
        else:
            position.of(state.setdefault(kind, torch.zeros_like(position.flat))).copy_(own)

    restore(slices, module, put)


def _position_of(stage: int, parameter: nn.Parameter, optimizer: Any, rank: int) -> _Position | None:
    """Return the position of this worker's slice; None if the worker has no slice or the parameter is frozen."""
    if not parameter.requires_grad:
        return None
    if stage < 3:
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return None
        flat = optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
        inside, outside = mapping.hp_fragment_address, mapping.lp_fragment_address
        return _Position(flat, inside.start, outside.start, inside.numel)
    group, offset, padded = optimizer.grad_position[optimizer.get_param_id(parameter)]
    # The last worker's slice is padded; the padding is left out.
    start, length = rank * padded, max(0, min(padded, parameter.ds_numel - rank * padded))  # type: ignore[attr-defined]
    return _Position(optimizer.fp32_partitioned_groups_flat[group], offset, start, length) if length else None


def _put_weights(stage: int, parameter: Any, values: Tensor) -> None:
    if stage < 3:
        parameter.data.copy_(values)
        return
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    with GatheredParameters([parameter], modifier_rank=0):
        parameter.data.copy_(values)
