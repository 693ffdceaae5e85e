"""Data-parallel group for the losses, on torch.distributed (gloo and nccl).

The differentiable all-gather is a forward all-gather, and a backward reduce-scatter of the gradients to each row's
owner. With every worker's loss written as `size` times its own rows' share, the strategy's averaging then
gives the gradients of one process holding the whole batch, with no world-size factor anywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from raytriever.losses.engine.workers import ALONE, WorkerGroup

# The same functions: torch 2.13 renamed them and warns of their old names.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


class GroupWorkers:
    """A `losses.workers.Workers` over a torch.distributed process group.

    Args:
        group: the data-parallel group; the default one when not given.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)

    def gather(self, rows: Tensor, sent: torch.dtype | None = None) -> Tensor:
        """Return all workers' rows in order of rank; gradients return to their owner as a sum."""
        gathered: Tensor = _Gather.apply(rows, self, sent or rows.dtype)
        return gathered

    def sum_to_owners(self, rows: Tensor, sent: torch.dtype) -> Tensor:
        """Return the sum over the workers of this worker's share of the rows.

        Rounded rows are exchanged and then added, in the type of `rows`: a reduce-scatter would round every sum.
        """
        own = rows.new_empty(len(rows) // self.size, *rows.shape[1:])
        if sent == rows.dtype:
            _reduce_scatter(own, rows.contiguous(), group=self._group)
            return own
        received = torch.empty_like(rows, dtype=sent, memory_format=torch.contiguous_format)
        distributed.all_to_all_single(received, rows.to(sent).contiguous(), group=self._group)
        return received.view(self.size, *own.shape).sum(0, dtype=rows.dtype)

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


def current_workers() -> WorkerGroup:
    """Return the process group of this process, or a group of one."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return GroupWorkers()
    return ALONE


def host_workers(workers: WorkerGroup) -> WorkerGroup:
    """Return the group for messages in the memory of the CPU, for which no worker waits for its GPU.

    All workers call it in the same order.
    """
    if workers.size == 1 or not distributed.is_initialized() or distributed.get_backend() == "gloo":
        return workers
    return GroupWorkers(distributed.new_group(backend="gloo"))


def ensure_group(device: torch.device) -> None:
    """Create a process group of one worker if there is none: DeepSpeed and FSDP2 need one."""
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)


class _Gather(torch.autograd.Function):
    """All-gather forward, sum to the owner backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, workers: GroupWorkers, sent: torch.dtype) -> Tensor:
        ctx.workers, ctx.sent = workers, sent
        return workers.gather_values(rows.to(sent)).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.workers.sum_to_owners(grad[0], ctx.sent), None, None
