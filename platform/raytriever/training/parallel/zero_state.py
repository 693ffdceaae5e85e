"""Slices of a state that DeepSpeed (0.19) has sharded: writing and reading.

Stages 1 and 2 concatenate all parameters of a group and give each worker a range of them: the `_hp_mapping` of a
parameter has the position of its slice. Stage 3 gives each worker an equal slice of each parameter, padded.
The moments of the optimizer belong to the float32 tensors of these ranges. DeepSpeed's own checkpoints
are pickled and tied to the number of workers, and are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.training.parallel.model_state import STEP, Slice, restore, shape_of


@dataclass(frozen=True)
class _Position:
    """Position of a worker's slice of a parameter.

    Args:
        flat: the float32 tensor that the optimizer updates.
        offset: of the slice in it.
        start: of the slice in the parameter.
        length: of the slice.
    """

    flat: Tensor
    offset: int
    start: int
    length: int

    def of(self, flat: Tensor) -> Tensor:
        """Return the slice of the flat tensor or of one of its moments."""
        return flat.detach()[self.offset : self.offset + self.length]


def sharded_state(stage: int, module: nn.Module, optimizer: Any, rank: int) -> Iterator[Slice]:
    """Yield this worker's slices of the trained weights and of their moments."""
    for name, parameter in module.named_parameters():
        shape = shape_of(parameter)
        position = _position_of(stage, parameter, optimizer, rank)
        if position is None:
            continue
        yield Slice(name, position.of(position.flat), position.start, shape)
        for key, value in optimizer.optimizer.state.get(position.flat, {}).items():
            if key != STEP:
                yield Slice(f"{name}:{key}", position.of(value), position.start, shape)
            elif position.start == 0:
                yield Slice(f"{name}:{key}", value.detach().flatten(), 0, ())


@torch.no_grad()
def restore_sharded(slices: Iterable[Slice], stage: int, module: nn.Module, optimizer: Any, rank: int) -> None:
    """Load a state; every worker reads all slices and keeps its own."""

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
            state[STEP] = values.clone()
        else:
            position.of(state.setdefault(kind, torch.zeros_like(position.flat))).copy_(own)

    restore(slices, module, put)


def _position_of(stage: int, parameter: nn.Parameter, optimizer: Any, rank: int) -> _Position | None:
    """Return the position of this worker's slice; None where it has none or the parameter is not trained."""
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
    start, length = _share(parameter, padded, rank)
    return _Position(optimizer.fp32_partitioned_groups_flat[group], offset, start, length) if length else None


def _share(parameter: Any, padded: int, rank: int) -> tuple[int, int]:
    """Return start and length of a worker's slice of a stage 3 parameter, without padding."""
    start = rank * padded
    return start, max(0, min(padded, parameter.ds_numel - start))


def _put_weights(stage: int, parameter: Any, values: Tensor) -> None:
    if stage < 3:
        parameter.data.copy_(values)
        return
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    with GatheredParameters([parameter], modifier_rank=0):
        parameter.data.copy_(values)
