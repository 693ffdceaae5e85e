"""What is free on a device, what the activations of a forward take, and whether an error says that memory ran out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Bytes that this process could still allocate on a device; on a processor, what it shares with all others."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # no limit reads "max"
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, limit - used)
    return available


def activations(forward: Callable[[], object]) -> int:
    """Bytes that a forward keeps for its backward, parameters included, each storage once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a processor."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
