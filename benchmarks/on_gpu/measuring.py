"""Time and memory of a device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch

import ends
from ends import End, reported

# Titles and values, as they are measured.
Figures = Iterator[tuple[str, End]]
Cases = Iterator[tuple[str, Figures]]
IN_A_ROW = 3


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 7) -> float:
    """Return the median seconds of a call, warmed up twice; on a GPU of three calls in a row, as steps follow steps."""
    for _ in range(2):
        work()
    synchronize(device)
    durations = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(IN_A_ROW):
                work()
            end.record()
            end.synchronize()
            durations.append(begin.elapsed_time(end) / 1000 / IN_A_ROW)
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


def at_most(value: float, limit: float, device: torch.device) -> End:
    """Return a figure with a goal, which counts on a GPU alone."""
    return ends.at_most(value, limit) if device.type == "cuda" else reported(value)


def at_least(value: float, limit: float, device: torch.device) -> End:
    """Return a figure with a goal, which counts on a GPU alone."""
    return ends.at_least(value, limit) if device.type == "cuda" else reported(value)


def release(device: torch.device) -> None:
    """Give back the memory of what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
