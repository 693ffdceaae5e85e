"""Time and memory of a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """Return the median seconds of a call, warmed up twice; on a GPU those between two events around it."""
    for _ in range(2):
        work()
    synchronize(device)
    durations = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            durations.append(begin.elapsed_time(end) / 1000)
        else:
            began = time.perf_counter()
            work()
            durations.append(time.perf_counter() - began)
    return median(durations)


def peak_gb(work: Callable[[], object], device: torch.device) -> float:
    """Return the most GB (10^9 bytes) that a call allocates on a GPU on top of what is there; 0 on a CPU."""
    if device.type != "cuda":
        work()
        return 0.0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e9
