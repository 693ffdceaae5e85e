"""Time of each phase of a training step, and detection of a slow worker.

The encoder ends where the loss is called, the loss where it returns, the backward pass where the optimizer is called:
two hooks on the loss and one on the optimizer measure a step of any strategy. On a GPU the marks are CUDA events, read
after the step: the step waits for the device once, at its end. With gradient caching the second encoding pass counts
as backward; so do the synchronization and the clipping of gradients.

All workers end a step together. So a slow worker is found by the time until it first waits for the others, compared
over a window of steps."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from raytriever.losses.engine.workers import Workers

PHASES = ("encode", "loss", "backward", "optimizer")


class Stopwatch:
    """Stopwatch of the phases of training steps.

    Args:
        loss: called once per step, with all embeddings.
        optimizer: called at least once per step.
        device: of the worker.
    """

    def __init__(self, loss: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        self._running = False
        loss.register_forward_pre_hook(lambda *_: self._mark(1))
        loss.register_forward_hook(lambda *_: self._mark(2))
        optimizer.register_step_pre_hook(lambda *_: self._mark(3))

    def start(self) -> None:
        """Start a step."""
        self._marks, self._running = [], True
        self._mark(0)

    def stop(self) -> dict[str, float]:
        """End the step, and return the seconds of each phase as `PHASE_seconds`; empty where a phase was missing."""
        self._mark(4)
        self._running = False
        if len(self._marks) != len(PHASES) + 1:
            return {}
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return {f"{phase}_seconds": self._between(number) for number, phase in enumerate(PHASES)}

    def _mark(self, number: int) -> None:
        # The optimizer may be called once per group of parameters, and validation calls the loss too.
        if not self._running or number != len(self._marks):
            return
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def _between(self, number: int) -> float:
        earlier, later = self._marks[number : number + 2]
        if self._device.type == "cuda":
            return float(earlier.elapsed_time(later)) / 1000
        return float(later - earlier)


WINDOW = 20  # steps
EXCESS = 0.3  # of the others' median; a smaller difference is not logged
LEAST_SECONDS = 0.02  # per step; a smaller difference is not logged
_HOST_BYTES = 64


@dataclass(frozen=True)
class Straggler:
    """The slowest worker.

    Args:
        rank: of the worker.
        seconds: per step that it takes longer than the median of the others.
        share: of the median that these seconds are.
    """

    rank: int
    seconds: float
    share: float

    @property
    def is_relevant(self) -> bool:
        """Whether the difference is large enough to be logged."""
        return self.share > EXCESS and self.seconds > LEAST_SECONDS


def slowest(seconds: Sequence[float]) -> Straggler:
    """Return the slowest of several workers, the first of equal ones.

    Args:
        seconds: per step of each worker, by rank; at least two.
    """
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    others = median([*seconds[:rank], *seconds[rank + 1 :]])
    more = seconds[rank] - others
    return Straggler(rank, more, more / others if others > 0 else float(more > 0))


class StragglerWatch:
    """Detector of slow workers. It logs a slow worker once, until another or none is slow.

    Args:
        hosts: host name of each worker, by rank.
        log: receives lines for the user.
    """

    def __init__(self, hosts: Sequence[str], log: Callable[[str], None]) -> None:
        self._hosts, self._log = hosts, log
        self._sums = [0.0] * len(hosts)
        self._steps = -1  # the first step of a process is a warm-up
        self._logged_rank: int | None = None

    def update(self, seconds: Sequence[float]) -> dict[str, float]:
        """Add one step, and return the metrics of a window of steps when it is full.

        Args:
            seconds: of each worker, by rank.
        """
        self._steps += 1
        if len(self._hosts) < 2 or self._steps == 0:
            return {}
        self._sums = [total + one for total, one in zip(self._sums, seconds, strict=True)]
        if self._steps < WINDOW:
            return {}
        straggler = slowest([total / WINDOW for total in self._sums])
        self._sums, self._steps = [0.0] * len(self._hosts), 0
        self._log_change(straggler)
        return {"slowest_worker": float(straggler.rank), "straggler_seconds": straggler.seconds}

    def _log_change(self, straggler: Straggler) -> None:
        if straggler.is_relevant:
            if self._logged_rank != straggler.rank:
                self._log(
                    f"Worker {straggler.rank} on {self._hosts[straggler.rank]} is slow: {straggler.seconds:.2g} s per "
                    f"step ({straggler.share:.0%}) more than the median of the others over {WINDOW} steps."
                )
            self._logged_rank = straggler.rank
        elif self._logged_rank is not None:
            self._log(f"Worker {self._logged_rank} on {self._hosts[self._logged_rank]} is no longer slow.")
            self._logged_rank = None


def host_names(workers: Workers, device: torch.device) -> list[str]:
    """Return the host name of each worker, by rank; all workers call it.

    Args:
        workers: the group.
        device: where its collectives take their tensors.
    """
    name = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
    own = torch.frombuffer(bytearray(name), dtype=torch.uint8)[None].to(device)
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in workers.gather_values(own).tolist()]
