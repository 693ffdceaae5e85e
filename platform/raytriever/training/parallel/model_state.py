"""State of model and optimizer as slices for checkpoints.

A slice is a range of values of one flattened tensor. A weight is stored under its NAME in the module, its moments in
AdamW under `NAME:exp_avg` and `NAME:exp_avg_sq`, and its step count under `NAME:step`. Slices do not depend on the
strategy or the number of workers, so every strategy can read the state of every other.

Frozen weights have no slices. They do not change, so a run reads them again from the model that it trains. A checkpoint
has only their digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256

import torch
from torch import Tensor, nn

from raytriever.core.errors import StorageError, setting
from raytriever.models.checkpoint_model import CHECKPOINT, OTHER_OUTPUT, Slice, whole_tensors

ADAMW_STATE = ("exp_avg", "exp_avg_sq")
STEP = "step"
SAME_RUN = f"give the model, settings and data of the checkpoint, or start a new run with another {setting('output')}"


def slices_of(
    name: str, values: Tensor, start: int, shape: tuple[int, ...], optimizer_state: Mapping[str, Tensor]
) -> Iterator[Slice]:
    """Yield a worker's slices of a weight and of its moments. The step count comes with the slice that starts at 0.

    Args:
        values: the worker's slice of the weight, one-dimensional.
        start: index of its first value in the flattened weight.
        optimizer_state: the worker's slices of the moments, and the step count, by name.
    """
    yield Slice(name, values, start, shape)
    for key, state in optimizer_state.items():
        if key != STEP:
            yield Slice(f"{name}:{key}", state, start, shape)
        elif start == 0:
            yield Slice(f"{name}:{key}", state.detach().flatten(), 0, ())


def restore(slices: Iterable[Slice], module: nn.Module, put: Callable[[str, nn.Parameter, str, Tensor], None]) -> None:
    """Pass every saved tensor of this model to `put(name, parameter, kind, values)`; `kind` is empty for a weight."""
    own = dict(module.named_parameters())
    shapes = {name: shape_of(parameter) for name, parameter in own.items()}
    kinds_of: dict[str, set[str]] = {}
    for name, values in whole_tensors(slices):
        weight, _, kind = name.partition(":")
        if weight not in own or (kind != STEP and shapes[weight] != tuple(values.shape)):
            _refuse(weight, tuple(values.shape), shapes.get(weight))
        kinds_of.setdefault(weight, set()).add(kind)
        put(weight, own[weight], kind, values)
    for name, parameter in own.items():
        kinds = kinds_of.get(name, set())
        if "" not in kinds and parameter.requires_grad:
            _refuse(name, None, shapes[name])
        if kinds not in (set(), {""}, {"", STEP, *ADAMW_STATE}):
            optimizer_state = ", ".join(sorted(kinds - {""}))
            raise StorageError(
                f"{name} has the moments {optimizer_state}, but must have all or none", CHECKPOINT, OTHER_OUTPUT
            )


def replicated_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Slice]:
    """Yield the state of a model that is not sharded, without its frozen weights."""
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        optimizer_state = {key: value.detach().flatten() for key, value in optimizer.state.get(parameter, {}).items()}
        yield from slices_of(name, parameter.detach().flatten(), 0, tuple(parameter.shape), optimizer_state)


@torch.no_grad()
def restore_replicated(slices: Iterable[Slice], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a state into a model that is not sharded."""

    def put(name: str, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
        if not kind:
            parameter.copy_(values)
        else:
            device = device_of_steps(optimizer, parameter) if kind == STEP else parameter.device
            optimizer.state.setdefault(parameter, {})[kind] = values.to(device)

    restore(slices, module, put)


def device_of_steps(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.device:
    """Return the device of AdamW's step count: the parameter's device if AdamW is fused or capturable, else CPU."""
    is_next_to_it = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
    return parameter.device if is_next_to_it else torch.device("cpu")


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the whole shape of a parameter, even if ZeRO-3 keeps only a slice of it in this process."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _refuse(name: str, saved: tuple[int, ...] | None, own: tuple[int, ...] | None) -> None:
    there, here = ("absent" if shape is None else str(shape) for shape in (saved, own))
    what = f"is of another model: {name} is {there} in the checkpoint and {here} in the model"
    raise StorageError(what, CHECKPOINT, SAME_RUN)


@torch.no_grad()
def frozen_digest(module: nn.Module) -> str | None:
    """Return 16 hexadecimal digits of the SHA-256 of all frozen weights; None if no weight is frozen.

    Weights are rounded to bf16 first, so that the digest does not depend on their type."""
    digest = sha256()
    frozen = [item for item in module.named_parameters() if not item[1].requires_grad]
    for name, parameter in frozen:
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(parameter.to(torch.bfloat16).cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16] if frozen else None


@contextmanager
def gathered(parameter: nn.Parameter) -> Iterator[Tensor]:
    """Within the `with` block, gather a parameter that ZeRO-3 has sharded. All workers call this."""
    if parameter.shape == shape_of(parameter):
        yield parameter.detach()
        return
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    with GatheredParameters([parameter]):
        yield parameter.detach()
