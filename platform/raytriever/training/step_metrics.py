"""Metrics of training steps: slow workers, phases, throughput, and the report of each step.

All workers end a step together. So a slow worker is recognized by another time. It is measured from the start of a step
until the worker first waits for the others, and averaged over a window of steps."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn

from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss import LossOutput
from raytriever.models.packing import lengths_of
from raytriever.training.batch_loader import Batch
from raytriever.training.parallel.strategies import HostValues, finite_or_refused

WINDOW = 20  # number of steps over which seconds are averaged
EXCESS = 0.3  # a difference below this fraction of the median seconds of the other workers is not logged
LEAST_SECONDS = 0.02  # a difference of fewer seconds per step is not logged
# Peak TFLOP/s of (dense bf16 on tensor cores, fp32), from the vendor's data sheets.
_PEAKS = {
    "NVIDIA A100": (312.0, 19.5),
    "NVIDIA H100 PCIe": (756.0, 51.0),
    "NVIDIA H100": (989.4, 67.0),
    "NVIDIA H200": (989.4, 67.0),
    "NVIDIA L4": (121.0, 30.3),
    "NVIDIA L40S": (362.0, 91.6),
}


class StragglerWatch:
    """Detector of the slowest worker. It logs a slow worker once, and again only after a change."""

    def __init__(self, hosts: Sequence[str], log: Callable[[str], None]) -> None:
        self._hosts, self._log = hosts, log
        self._window: list[Sequence[float]] = []
        self._is_warm = False  # the first step of a process is left out
        self._logged_rank: int | None = None

    def update(self, seconds: Sequence[float]) -> dict[str, float]:
        """Add the seconds of each worker in one step. Return metrics if the window is full, else nothing."""
        if len(self._hosts) > 1 and self._is_warm:
            self._window.append(seconds)
        self._is_warm = True
        if len(self._window) < WINDOW:
            return {}
        means = [sum(steps) / WINDOW for steps in zip(*self._window, strict=True)]
        self._window = []
        rank = max(range(len(means)), key=means.__getitem__)
        others = median([*means[:rank], *means[rank + 1 :]])
        more = means[rank] - others
        is_slow = more > max(EXCESS * others, LEAST_SECONDS)
        if is_slow and self._logged_rank != rank:
            self._log(
                f"Worker {rank} on {self._hosts[rank]} is slow: {more:.2g} s per step more than the {others:.2g} s of "
                f"the others (median, {WINDOW} steps)."
            )
        self._logged_rank = rank if is_slow else None
        return {"slowest_worker": float(rank), "straggler_seconds": more}


PHASES = ("encode", "loss", "backward", "optimizer")


class Stopwatch:
    """Stopwatch of the phases of training steps.

    Two hooks on the loss end the phases `encode` and `loss`; the training loop ends the others. On a GPU the marks are
    CUDA events. They are read with the results of the step, so no step waits for them. The synchronization and the
    clipping of gradients belong to `backward`. The second encoding pass of gradient caching also belongs to it."""

    def __init__(self, loss: nn.Module, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] | None = None  # marks of the running step; None between steps
        loss.register_forward_pre_hook(lambda *_: self.mark())
        loss.register_forward_hook(lambda *_: self.mark())

    def start(self) -> None:
        """Start a step."""
        self._marks = []
        self.mark()

    def mark(self) -> None:
        """End a phase of the running step. Do nothing if no step is running: validation calls the loss too."""
        if self._marks is None:
            return
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record(torch.cuda.current_stream(self._device))
        else:
            self._marks.append(time.perf_counter())

    def stop(self) -> Callable[[], dict[str, float]]:
        """End the step, and return a function that returns the seconds of each phase as `PHASE_seconds`.

        On a GPU, call the function only after the device has finished the step."""
        self.mark()
        marks, self._marks = self._marks or [], None
        return lambda: {
            f"{phase}_seconds": _between(*ends) for phase, ends in zip(PHASES, pairwise(marks), strict=True)
        }


def _between(earlier: Any, later: Any) -> float:
    return float(later - earlier) if isinstance(earlier, float) else float(earlier.elapsed_time(later)) / 1000


def peak_flops(device_name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a device; None if it is not known. `fp32` means without TF32."""
    # Longest first: some names are prefixes of others.
    for name in sorted(_PEAKS, key=len, reverse=True):
        if device_name == name or device_name.startswith((f"{name} ", f"{name}-")):
            return _PEAKS[name][precision == "fp32"] * 1e12
    return None


def flops_of(backbone: nn.Module) -> tuple[int, int]:
    """Return the FLOPs of a transformers encoder, forward and backward, per token and per pair of tokens of one text.

    A token costs 6 FLOPs for each weight, or 4 if the weight is frozen; token embeddings and pooler are left out. A
    pair of tokens costs 12 FLOPs for each layer and hidden dimension (Chowdhery et al., 2022, arXiv:2204.02311,
    appendix B). Padding and the second encoding of gradient caching are left out."""
    not_counted = {
        id(parameter)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Embedding) or name == "pooler"
        for parameter in module.parameters()
    }
    per_token = sum(
        getattr(parameter, "ds_numel", parameter.numel()) * (6 if parameter.requires_grad else 4)
        for parameter in backbone.parameters()
        if id(parameter) not in not_counted
    )
    config: Any = backbone.config
    return per_token, 12 * config.num_hidden_layers * config.hidden_size


class Throughput:
    """Counter of the tokens and FLOPs of global batches. It also computes rates per second."""

    def __init__(
        self, query: nn.Module, passage: nn.Module, precision: str, device: torch.device, workers: WorkerGroup
    ) -> None:
        self._flops = flops_of(query), flops_of(passage)
        self._device, self._workers = device, workers
        self._peak = peak_flops(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None

    def count(self, batch: Batch) -> tuple[float, float]:
        """Return tokens and FLOPs of this worker's local batch. Call this while the batch is on the CPU, so
        that the CPU does not wait."""
        tokens = flops = 0.0
        for (per_token, per_pair), texts in zip(self._flops, (batch.queries, batch.passages), strict=True):
            lengths = torch.cat([lengths_of(bucket) for bucket in texts.buckets]).double()
            own = float(lengths.sum())
            tokens, flops = tokens + own, flops + per_token * own + per_pair * float(lengths.square().sum())
        return tokens, flops

    def total(self, work: tuple[float, float]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and FLOPs of the global batch as tensors on the device. All workers call this; no CPU waits."""
        own = [torch.full((), value, dtype=torch.float64, device=self._device) for value in work]
        tokens, flops = self._workers.all_reduce(torch.stack(own))
        return tokens, flops

    def rates(self, tokens: float, flops: float, queries: int, seconds: float) -> dict[str, float]:
        """Return the rates of the global batch and the memory of this worker."""
        rates = {
            "queries_per_second": queries / seconds,
            "tokens_per_second": tokens / seconds,
            "peak_memory_mb": peak_memory_mb(self._device),
        }
        if self._peak is not None:
            rates["model_flops_utilization"] = flops / seconds / (self._peak * self._workers.size)
        return rates


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory in MB (10^6 bytes): of tensors on a GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


_TOKENS, _FLOPS = "tokens of the global batch", "FLOPs of the global batch"


class StepLines:
    """Reports of the steps of one worker. Each report has the number of its step.

    On a GPU, the results of a step are read after the next step is launched, so the CPU stays one step ahead. On a CPU,
    the results are read immediately.

    Attributes:
        own_seconds: seconds of the last step that was read, up to the point where this worker first waited for others.
    """

    def __init__(
        self,
        throughput: Throughput,
        batch_size: int,
        report: Callable[[int, Mapping[str, float]], None],
        reads_late: bool,
    ) -> None:
        self._throughput, self._batch_size, self._report, self._reads_late = throughput, batch_size, report, reads_late
        self._unreported: Callable[[], None] | None = None  # reports the step whose results are being copied
        self.own_seconds = 0.0

    def add(
        self,
        step: int,
        output: LossOutput,
        norm: torch.Tensor,
        work: tuple[float, float],
        phases: Callable[[], dict[str, float]],
        began: float,
        others: Mapping[str, float],
    ) -> None:
        """Start to copy the results of a step to the CPU. All workers call this method.

        Raises the errors of `finish`, for this step or the step before.

        Args:
            step: number of the step, from 0.
            output, norm: loss of the step, and norm of its gradient; the device may still be computing them.
            work: tokens and FLOPs of this worker's local batch.
            phases: returns the seconds of each phase; called after the results are read.
            began: `time.perf_counter()` at the start of the step, before the wait for its batch.
        """
        tokens, flops = self._throughput.total(work)
        statistics = {"loss": output.value, **output.statistics, "gradient_norm": norm}
        host_values = HostValues({**statistics, _TOKENS: tokens, _FLOPS: flops})
        self.finish()
        others = {**others, "step_seconds": time.perf_counter() - began}
        self._unreported = partial(self._finish, step, host_values, phases, others)
        if not self._reads_late:
            self.finish()

    def finish(self) -> None:
        """Report the step that is not reported yet, before anything of a later step is saved or reported.

        Raises:
            NotFiniteError: the loss or gradient of the step is NaN or infinite. Neither this step nor a later one has
                changed a weight.
        """
        report, self._unreported = self._unreported, None
        if report is not None:
            report()

    def _finish(
        self, step: int, host_values: HostValues, phases: Callable[[], dict[str, float]], others: dict[str, float]
    ) -> None:
        statistics = host_values.read()
        finite_or_refused(statistics["loss"], statistics["gradient_norm"], step)
        tokens, flops = statistics.pop(_TOKENS), statistics.pop(_FLOPS)
        seconds = phases()
        # If the CPU did not wait for the GPU, as after the first step, the time on its own clock is too short.
        waited = others["data_wait_seconds"]
        others["step_seconds"] = max(others["step_seconds"], waited + sum(seconds.values()))
        self.own_seconds = waited + seconds.get("encode_seconds", 0.0)
        rates = self._throughput.rates(tokens, flops, self._batch_size, others["step_seconds"])
        self._report(step + 1, {**statistics, **others, **seconds, **rates})
