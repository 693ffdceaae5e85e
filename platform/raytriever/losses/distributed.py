"""Collectives of a data-parallel group, on torch.distributed (gloo and nccl): `all_gather` and `all_reduce`.

Gradient convention: `all_gather` is differentiable. Its backward pass is a reduce-scatter: each worker gets the summed
gradients of its own rows. The loss of each worker is its partial loss times the number of workers. The
training strategy averages gradients over the workers, so they equal the gradients of one process with all rows."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, distributed

# torch 2.13 renamed these functions, and warns about the old names.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


class WorkerGroup:
    """Data-parallel group, seen from one worker. All workers call every collective in the same order.

    With one worker, every collective is the identity. None as `group` means torch.distributed's default."""

    def __init__(self, group: distributed.ProcessGroup | None = None, rank: int = 0, size: int = 1) -> None:
        self._group, self.rank, self.size = group, rank, size

    def all_gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all workers in rank order. Each worker gets the summed gradients of its own rows."""
        if self.size == 1:
            return rows
        gathered: Tensor = _AllGather.apply(rows, self)
        return gathered

    def all_reduce(self, value: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """Return the elementwise sum or maximum over the workers, without gradient."""
        if self.size == 1:
            return value.detach()
        reduced = value.detach().clone(memory_format=torch.contiguous_format)
        operation: Any = distributed.ReduceOp.SUM if op == "sum" else distributed.ReduceOp.MAX
        distributed.all_reduce(reduced, op=operation, group=self._group)
        return reduced

    def _gather(self, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        gathered = rows.new_empty(self.size * len(rows), *rows.shape[1:])
        _all_gather(gathered, rows, group=self._group)
        return gathered

    def _sum_to_owners(self, rows: Tensor) -> Tensor:
        """Sum the rows over the workers. Return the sums of this worker's own rows (reduce-scatter)."""
        own = rows.new_empty(len(rows) // self.size, *rows.shape[1:])
        _reduce_scatter(own, rows.contiguous(), group=self._group)
        return own


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, workers: WorkerGroup) -> Tensor:
        ctx.workers = workers
        return workers._gather(rows)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        return ctx.workers._sum_to_owners(grad[0]), None


ALONE = WorkerGroup()


def current_workers() -> WorkerGroup:
    """Return the default process group; if there is none, a group with only this process."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return _workers_of(None)
    return ALONE


def host_workers(workers: WorkerGroup) -> WorkerGroup:
    """Return a group that exchanges CPU tensors (gloo), so that no worker waits for its GPU.

    All workers must call this in the same order, because it may create a process group."""
    if workers.size == 1 or not distributed.is_initialized() or distributed.get_backend() == "gloo":
        return workers
    return _workers_of(distributed.new_group(backend="gloo"))


def _workers_of(group: distributed.ProcessGroup | None) -> WorkerGroup:
    return WorkerGroup(group, distributed.get_rank(group), distributed.get_world_size(group))


def ensure_group(device: torch.device) -> None:
    """Create a process group of one worker if there is none, because DeepSpeed and FSDP2 need a group."""
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
