"""The weights of a retriever that is being trained, whole, as they are after a step; and the way into another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy import ndarray
from torch import nn

from raytriever.losses.workers import Workers
from raytriever.parallel.shards import shape_of

Snapshot = Mapping[str, ndarray]


@torch.no_grad()
def take_snapshot(module: nn.Module, workers: Workers) -> Snapshot:
    """A copy of every parameter by name on the first worker, nothing on the others; every worker makes the call.

    What ZeRO-3 has sharded is gathered one parameter at a time, so nobody holds more than its share and one of them.
    """
    found = {}
    for name, parameter in module.named_parameters():
        with _whole(parameter):
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
def _whole(parameter: nn.Parameter) -> Iterator[None]:
    if parameter.shape == shape_of(parameter):
        yield
        return
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    with GatheredParameters([parameter]):
        yield
