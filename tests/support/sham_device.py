"""Sham CUDA device: tensors that say cuda:0 and compute on the CPU, to test code for GPUs where there is none.

Within `sham_device()`
1. tensors on `CUDA` refuse tensors on the CPU, except those without dimensions, as CUDA does;
2. kernel launches, host syncs and copies are counted by line of the package. A copy between the device and memory that
   is not pinned waits, so it counts as a sync too;
3. tensors take the memory of the device. It raises `torch.cuda.OutOfMemoryError` when none is left;
4. random numbers of the device have a state of their own; streams and events do nothing, and are counted.

`torch.cuda` and a few functions of torch are replaced only within the context, in all threads started there.

Limits. An operator counts as one launch, also where CUDA needs several kernels. Autocast follows the rules of the CPU:
layer norm and softmax stay in bf16. Operators without a CPU implementation fail, except flash
attention of packed texts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from kernel_counts import Counts, line_of_caller
from sham_tensor import CUDA, Device, Mode, ShamTensor, is_cuda, values
from torch import Tensor
from torch.utils import _device, _foreach_utils

__all__ = ["CUDA", "Counts", "ShamTensor", "sham_device", "values"]


@contextmanager
def sham_device(
    memory: int = 80 << 30, name: str = "NVIDIA H100 80GB HBM3", capability: tuple[int, int] = (9, 0)
) -> Iterator[Counts]:
    """Provide one sham CUDA device to the code in a `with` statement.

    Args:
        memory: of the device, in bytes.
        name: of the device.
        capability: its compute capability.
    """
    counts = Counts(memory)
    device = Device(counts)
    properties = SimpleNamespace(
        name=name, total_memory=memory, major=capability[0], minor=capability[1], multi_processor_count=132
    )
    _device._device_constructors()  # remembers functions of torch, which must not be those of the sham
    with ExitStack() as stack:
        for target, attribute, value in _replacements(device, properties):
            stack.enter_context(mock.patch.object(target, attribute, value, create=True))
        _foreach_utils._foreach_supported_types.append(ShamTensor)
        stack.callback(_foreach_utils._foreach_supported_types.remove, ShamTensor)
        stack.enter_context(Mode(device))
        yield counts


def _replacements(device: Device, properties: SimpleNamespace) -> list[tuple[Any, str, Any]]:
    counts, cuda = device.counts, torch.cuda
    autocast, tensor, as_tensor, was_pinned = torch.autocast, torch.tensor, torch.as_tensor, Tensor.is_pinned
    group = torch._C._group_tensors_by_device_and_dtype
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    class Autocast(autocast):  # type: ignore[misc,valid-type]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            self._at = 0.0

        def record(self, *_: Any) -> None:
            counts.events += 1
            self._at = time.perf_counter()

        def synchronize(self) -> None:
            counts.syncs[f"event {line_of_caller()}"] += 1

        def query(self) -> bool:
            return True

        def wait(self, *_: Any) -> None:
            """Let a stream wait; the streams of the sham are one."""

        def elapsed_time(self, later: Event) -> float:
            return (later._at - self._at) * 1000

    class Stream:
        def __init__(self, *_: Any, **__: Any) -> None:
            counts.streams += 1

        def wait_stream(self, other: Stream) -> None:
            """Wait for another stream; all are one."""

        def wait_event(self, event: Event) -> None:
            """Wait for an event; all streams are one."""
            counts.stream_waits += 1

        def record_event(self, event: Event | None = None) -> Event:
            event = event or Event()
            event.record()
            return event

        def synchronize(self) -> None:
            counts.syncs[f"stream {line_of_caller()}"] += 1

        def is_capturing(self) -> bool:
            return False

    default = Stream()

    @contextmanager
    def use_stream(stream: Stream) -> Iterator[None]:
        before = getattr(counts.thread, "is_aside", False)
        counts.thread.is_aside = stream is not default
        try:
            yield
        finally:
            counts.thread.is_aside = before

    def make(
        data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
    ) -> Tensor:
        copy = tensor(data, dtype=dtype)
        copy = copy.pin_memory() if pin_memory else copy
        return (copy.to(device) if is_cuda(device) else copy).requires_grad_(requires_grad)

    def group_tensors(lists: list[list[Any]], *settings: Any) -> Any:
        return {(lists[0][0].device, key[1]): result for key, result in group(lists, *settings).items()}

    def make_from(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        copy = data if isinstance(data, ShamTensor) else as_tensor(data)
        return copy.to(device or copy.device, dtype or copy.dtype)

    def run_thread(thread: threading.Thread) -> None:
        with Mode(device):
            bootstrap(thread)

    def synchronize(*_: Any) -> None:
        counts.syncs[f"synchronize {line_of_caller()}"] += 1

    def set_random_state(state: Tensor, *_: Any) -> None:
        device.random_state = state.clone()

    total = properties.total_memory
    functions: dict[str, Any] = {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
        "device_count": lambda: 1, "current_device": lambda: 0, "set_device": lambda *_: None,
        "get_device_name": lambda *_: properties.name, "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (properties.major, properties.minor),
        "is_bf16_supported": lambda *_, **__: properties.major >= 8,
        "mem_get_info": lambda *_: (counts.capacity - counts.memory, total),
        "memory_reserved": lambda *_: counts.memory, "memory_allocated": lambda *_: counts.memory,
        "max_memory_allocated": lambda *_: counts.peak, "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda *_: setattr(counts, "peak", counts.memory),
        "synchronize": synchronize, "Event": Event, "Stream": Stream, "current_stream": lambda *_: default,
        "default_stream": lambda *_: default, "stream": use_stream,
        "get_rng_state": lambda *_: device.random_state.clone(), "set_rng_state": set_random_state,
        "manual_seed": device.seed, "manual_seed_all": device.seed,
        # A build for CUDA would ask the driver, which need not be there.
        "is_current_stream_capturing": lambda: False,
    }  # fmt: skip
    return [
        *((cuda, attribute, value) for attribute, value in functions.items()),
        (torch.accelerator, "current_stream", lambda *_: default),
        (torch, "autocast", Autocast),
        (torch, "tensor", make),
        (torch, "as_tensor", make_from),
        (torch, "inference_mode", torch.no_grad),  # wrappers have no inference mode
        (Tensor, "pin_memory", lambda tensor, *_: device.pin(tensor.detach().clone())),
        (Tensor, "is_pinned", lambda tensor, *_: device.is_pinned(tensor) or was_pinned(tensor)),
        (torch._C, "_group_tensors_by_device_and_dtype", group_tensors),
        (threading.Thread, "_bootstrap_inner", run_thread),
    ]
