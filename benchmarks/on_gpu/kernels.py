"""Kernels of training steps and searches: the largest, their number, and how long the device waits for the next one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ends import reported
from on_gpu import losses, retrieval, training
from on_gpu.measuring import Cases, Figures, synchronize
from on_gpu.models import write_model

STEPS, KERNELS = 3, 12
WARM = 3
NAMESPACES = re.compile(r"void |at::native::|\(anonymous namespace\)::|pytorch_flash::")


def cases(device: torch.device, size: str, scratch: Path) -> Cases:
    """Yield the MW loss alone, searches, and the cases of the training section that fit without gradient caching."""
    sizes = losses.SIZES[size]
    yield "mw", of_loss(sizes, device)
    for k in retrieval.SIZES[size].k:
        yield f"search-{k}", of_search(retrieval.SIZES[size], k, device)
    for case in training.CASES[size]:
        if case.queries <= 64:
            yield case.name, of_training(case, scratch, device)


def of_loss(sizes: losses.Size, device: torch.device) -> Figures:
    """Profile the loss alone, forward and backward."""
    step = losses.ours("mw", "bf16", *losses.embeddings(sizes.batch, sizes.dim, device))
    yield from profiled("mw, bf16", lambda number: step(), device)


def of_search(sizes: retrieval.Size, k: int, device: torch.device) -> Figures:
    """Profile an exact search of the retrieval section."""
    documents, queries = retrieval.vectors(sizes)
    corpus = retrieval.resident(documents, device)
    yield from profiled(f"search, k = {k}", lambda number: corpus.top_k(queries, k), device)


def of_training(case: training.Case, scratch: Path, device: torch.device) -> Figures:
    """Profile steps of a case of the training section."""
    step, *_ = training.prepare(case, write_model(scratch, case.shape, device), device)
    yield from profiled(case.name, step, device)


def profiled(name: str, step: Callable[[int], object], device: torch.device) -> Figures:
    """Profile steps."""
    for number in range(WARM):
        step(number)
    synchronize(device)
    began = time.perf_counter()
    for number in range(STEPS):
        step(WARM + number)
    synchronize(device)
    wall = (time.perf_counter() - began) / STEPS
    activities = [ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        for number in range(STEPS):
            step(WARM + STEPS + number)
        synchronize(device)
    rows = [
        (key_average.key, _microseconds(key_average, device) / STEPS, key_average.count / STEPS)
        for key_average in profiler.key_averages()
    ]
    rows = sorted((row for row in rows if row[1]), key=lambda row: -row[1])
    busy = sum(row[1] for row in rows) / 1e6
    yield f"{name}: a step without the profiler (ms)", reported(1e3 * wall)
    yield f"{name}: kernels of a step", reported(sum(row[2] for row in rows))
    yield f"{name}: share of the step without a kernel", reported(max(0.0, 1 - busy / wall))
    for kernel, microseconds, count in rows[:KERNELS]:
        yield f"{name}: {NAMESPACES.sub('', kernel)[:90]}, {count:g} x (ms)", reported(microseconds / 1e3)


def _microseconds(event: object, device: torch.device) -> float:
    return float(getattr(event, f"self_{'device' if device.type == 'cuda' else 'cpu'}_time_total"))
