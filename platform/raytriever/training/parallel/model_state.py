"""Model state in slices for checkpoints, readable at any number of workers, and whole as a snapshot of the weights.

A slice is a run of values of one flattened tensor. Weights have the names of the module, AdamW's moments are
`NAME:exp_avg` and `NAME:exp_avg_sq`, its step count is `NAME:step`. The layout of no strategy shows, so any strategy
reads what another one wrote. A snapshot is a copy of all weights on rank 0, for processes that do not train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from raytriever.errors import StorageError
from raytriever.losses.engine.workers import Workers

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"
_TRAIN_AGAIN = "train again with --fresh"


@dataclass(frozen=True)
class Slice:
    """Some values of a tensor.

    Args:
        name: of the tensor.
        values: one-dimensional.
        start: place of the first of them in the flattened tensor.
        shape: of the whole tensor.
    """

    name: str
    values: Tensor
    start: int
    shape: tuple[int, ...]


def whole_tensors(slices: Iterable[Slice]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor from its slices, one at a time; slices of one name stand together, in any order.

    Raises:
        StorageError: values are missing, or slices disagree about a shape.
    """
    for name, parts in groupby(slices, key=lambda one: one.name):
        yield name, _whole(name, list(parts))


def restore(slices: Iterable[Slice], module: nn.Module, put: Callable[[str, nn.Parameter, str, Tensor], None]) -> None:
    """Hand every saved tensor to `put(name, parameter, kind, values)`; `kind` is empty for the weights.

    Raises:
        StorageError: the state is not of this model, or not whole.
    """
    own = dict(module.named_parameters())
    shapes = {name: shape_of(parameter) for name, parameter in own.items()}
    found: dict[str, set[str]] = {}
    for name, values in whole_tensors(slices):
        weight, _, kind = name.partition(":")
        if weight not in own or (kind != STEP and shapes[weight] != tuple(values.shape)):
            _refuse(weight, tuple(values.shape), shapes.get(weight))
        found.setdefault(weight, set()).add(kind)
        put(weight, own[weight], kind, values)
    for name in own:
        kinds = found.get(name, set())
        if "" not in kinds:
            _refuse(name, None, shapes[name])
        if kinds not in ({""}, {"", STEP, *MOMENTS}):
            held = ", ".join(sorted(kinds - {""}))
            raise StorageError(f"{name} has the moments {held}, expected all or none", "the checkpoint", _TRAIN_AGAIN)


def replicated_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Slice]:
    """The state of a model that is whole in this process."""
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        yield Slice(name, parameter.detach().flatten(), 0, shape)
        for key, value in optimizer.state.get(parameter, {}).items():
            yield Slice(f"{name}:{key}", value.detach().flatten(), 0, () if key == STEP else shape)


@torch.no_grad()
def restore_replicated(slices: Iterable[Slice], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a state back into a model that is whole in this process."""

    def put(name: str, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
        if not kind:
            parameter.copy_(values)
        else:
            # AdamW counts on the processor wherever it is not asked to do otherwise.
            device = "cpu" if kind == STEP else parameter.device
            optimizer.state.setdefault(parameter, {})[kind] = values.to(device)

    restore(slices, module, put)


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """The shape of a parameter, also where ZeRO-3 has left only a slice of it here."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _whole(name: str, parts: list[Slice]) -> Tensor:
    shape = parts[0].shape
    # Before memory for the whole is taken: the shape is what a file says.
    if not all(part.values.is_floating_point() for part in parts):
        raise StorageError(f"{name} holds other values than floating-point numbers", "the checkpoint", _TRAIN_AGAIN)
    if (values := sum(len(part.values) for part in parts)) != prod(shape):
        raise StorageError(f"{name} has {values} of its {prod(shape)} values", "the checkpoint", _TRAIN_AGAIN)
    whole = torch.empty(shape, dtype=parts[0].values.dtype)
    reached = 0
    for part in sorted(parts, key=lambda part: part.start):
        if part.shape != shape:
            raise StorageError(f"{name} has the shapes {shape} and {part.shape}", "the checkpoint", "train anew")
        if part.start != reached:
            break
        reached += len(part.values)
        whole.view(-1)[part.start : reached] = part.values
    if reached != whole.numel():
        raise StorageError(f"{name} has {reached} of its {whole.numel()} values", "the checkpoint", "train anew")
    return whole


def _refuse(name: str, there: tuple[int, ...] | None, here: tuple[int, ...] | None) -> None:
    told = " and ".join(
        f"{'absent' if shape is None else shape} {where}" for shape, where in ((there, "there"), (here, "here"))
    )
    raise StorageError(f"is of another model ({name} is {told})", "the checkpoint", "train anew with --fresh")


Snapshot = Mapping[str, ndarray]


@torch.no_grad()
def take_snapshot(module: nn.Module, workers: Workers) -> Snapshot:
    """A copy of every parameter by name on the first worker, nothing on the others; every worker makes the call.

    What ZeRO-3 has sharded is gathered one parameter at a time, so nobody holds more than its share and one of them.
    """
    found = {}
    for name, parameter in module.named_parameters():
        with _gathered(parameter):
            if workers.rank == 0:
                found[name] = parameter.detach().to("cpu", torch.float32, copy=True).numpy()
    return found


@torch.no_grad()
def load_snapshot(module: nn.Module, snapshot: Snapshot) -> None:
    """Put a snapshot into a module of the same make, in whatever precision its parameters have."""
    own = dict(module.named_parameters())
    if own.keys() != snapshot.keys():
        raise ValueError(f"another model: {sorted(own.keys() ^ snapshot.keys())[:3]}")
    for name, values in snapshot.items():
        own[name].copy_(torch.from_numpy(np.array(values)))


@contextmanager
def _gathered(parameter: nn.Parameter) -> Iterator[None]:
    if parameter.shape == shape_of(parameter):
        yield
        return
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    with GatheredParameters([parameter]):
        yield
