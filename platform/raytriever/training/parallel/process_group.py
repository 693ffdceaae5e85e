"""Data-parallel group for the losses, on torch.distributed (gloo and nccl).

The differentiable all-gather is a forward all-gather and a backward sum of the gradients back to each row's
owner. With every worker's loss written as `size` times its own rows' share, the strategy's averaging then
gives the gradients of one process holding the whole batch, with no world-size factor anywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from raytriever.losses.engine.workers import ALONE, Workers

# The same function: torch 2.13 renamed it and warns of its old name.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


class GroupWorkers:
    """A `losses.workers.Workers` over a torch.distributed process group.

    Args:
        group: the data-parallel group; the default one when not given.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)

    def gather(self, rows: Tensor) -> Tensor:
        """Return all workers' rows in order of rank; gradients return to their owner as a sum."""
        gathered: Tensor = _Gather.apply(rows, self)
        return gathered

    def gather_values(self, rows: Tensor) -> Tensor:
        """Return all workers' rows in order of rank, without gradient."""
        rows = rows.detach().contiguous()
        gathered = rows.new_empty(self.size * len(rows), *rows.shape[1:])
        _all_gather(gathered, rows, group=self._group)
        return gathered

    def sum(self, value: Tensor) -> Tensor:
        """Return the elementwise sum over the workers."""
        return self._reduce(value, distributed.ReduceOp.SUM)

    def maximum(self, value: Tensor) -> Tensor:
        """Return the elementwise maximum over the workers."""
        return self._reduce(value, distributed.ReduceOp.MAX)

    def _reduce(self, value: Tensor, operation: Any) -> Tensor:
        reduced = value.detach().clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(reduced, op=operation, group=self._group)
        return reduced


def current_workers() -> Workers:
    """Return the process group of this process, or a group of one."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return GroupWorkers()
    return ALONE


def ensure_group(device: torch.device) -> None:
    """Create a process group of one worker if there is none: DeepSpeed and FSDP2 need one."""
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)


class _Gather(torch.autograd.Function):
    """All-gather forward, sum to the owner backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, workers: GroupWorkers) -> Tensor:
        ctx.workers, ctx.length = workers, len(rows)
        return workers.gather_values(rows)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        # An all-reduce and a slice rather than a reduce-scatter: gloo has none.
        summed = ctx.workers.sum(grad[0])
        return summed[ctx.workers.rank * ctx.length :][: ctx.length], None
