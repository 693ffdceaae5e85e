"""A process group of fewer than were started: where the global batch does not divide among all that are there."""

from __future__ import annotations

import os

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]


def regroup(size: int, device: torch.device) -> bool:
    """Replace this process's group by one of the first `size` of it; every process of the old group calls it.

    A group of their own rather than a part of the old one, so that whatever looks at the default group (DeepSpeed
    does) sees the workers there are.

    Args:
        size: of the new group, smaller than that of the old one.
        device: where the group's collectives take their tensors.

    Returns:
        Whether this process belongs to the new group; the others are left without one.
    """
    rank, backend = distributed.get_rank(), distributed.get_backend()
    host, store = os.environ.get("MASTER_ADDR", "127.0.0.1"), None
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    told = torch.tensor(store.port if store is not None else 0, device=device)
    distributed.broadcast(told, 0)
    distributed.destroy_process_group()
    os.environ["WORLD_SIZE"] = str(size)
    if rank >= size:
        return False
    if size > 1:
        if store is None:
            store = TCPStore(host, int(told), is_master=False)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    return True
