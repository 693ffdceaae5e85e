"""Memory of a device: free bytes, errors if something does not fit, and copies to the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from numpy import ndarray
from torch import Tensor, nn

from raytriever.core.errors import ConfigError, setting
from raytriever.core.machine import free_system_memory

ModuleT = TypeVar("ModuleT", bound=nn.Module)
# Messages of out-of-memory errors of cuBLAS, CUDA, NCCL and the CPU that torch raises as plain RuntimeError.
_MESSAGES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
    "DefaultCPUAllocator: can't allocate memory",
)


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate on a device. CPU memory is shared with other processes."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return free_system_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error of a GPU or a CPU."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def memory_error(what: str, device: torch.device, name: str | None = None) -> ConfigError:
    """Return the error for work that runs out of memory.

    Args:
        what: clause that says what is too large.
        device: device whose memory is full.
        name: setting that determines the size, `passage_length` or `batch_tokens`. None if only more memory helps.
    """
    remedies = {
        "passage_length": f"free memory of the device, or give shorter texts, a smaller {setting('batch_size')}, a "
        "smaller model, or a strategy that shards more",
        "batch_tokens": "give a smaller number",
        None: "end the processes that use the GPU (nvidia-smi lists them), or choose another GPU with "
        "CUDA_VISIBLE_DEVICES, or the CPU with CUDA_VISIBLE_DEVICES=''",
    }
    return ConfigError(what, setting(name) if name else str(device), remedies[name])


@contextmanager
def memory_errors(what: str, device: torch.device, name: str | None = None) -> Iterator[None]:
    """Convert an out-of-memory error of the block to a `memory_error`."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise memory_error(what, device, name) from error


def move_to(module: ModuleT, device: torch.device) -> ModuleT:
    """Move a model to a device, in place, and return it."""
    try:
        return module.to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or device.type != "cuda":
            raise
    size = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    left = "which has no free memory at all"
    with suppress(RuntimeError):
        free, total = torch.cuda.mem_get_info(device)
        left = f"which has {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    what = f"the model has {size / 1e9:.1f} GB and does not fit into the memory of this GPU, {left}"
    raise memory_error(what, device)


class HostCopy:
    """Copy of a tensor to the CPU. The constructor starts the copy. Only `read` waits for the device."""

    def __init__(self, tensor: Tensor) -> None:
        self._values, self._copied = tensor, None
        if tensor.is_cuda:
            self._values = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> ndarray:
        """Wait until the device has computed and copied the values, and return them."""
        if self._copied is not None:
            self._copied.synchronize()
        values: ndarray = self._values.numpy()
        return values
