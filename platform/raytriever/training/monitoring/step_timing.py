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
    """Marks the phases of training steps.

    Args:
        loss: is called once a step, with all embeddings.
        optimizer: steps once a step, at least.
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
        """A step begins."""
        self._marks, self._running = [], True
        self._mark(0)

    def stop(self) -> dict[str, float]:
        """The step is over: seconds of each phase, as `PHASE_seconds`, empty where a phase was not seen."""
        self._mark(4)
        self._running = False
        if len(self._marks) != len(PHASES) + 1:
            return {}
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return {f"{phase}_seconds": self._between(number) for number, phase in enumerate(PHASES)}

    def _mark(self, place: int) -> None:
        # The optimiser may step once a group of parameters, and a look at the dev loss calls the loss too.
        if not self._running or place != len(self._marks):
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
EXCESS = 0.3  # of the others' median; what is below is no news
LEAST_SECONDS = 0.02  # a step; what is below holds nobody up
_HOST_BYTES = 64


@dataclass(frozen=True)
class Straggler:
    """The slowest worker.

    Args:
        rank: who it is.
        seconds: that it takes more than the median of the others, a step.
        share: what that is of the median.
    """

    rank: int
    seconds: float
    share: float

    @property
    def holds_up(self) -> bool:
        """Whether a person should know."""
        return self.share > EXCESS and self.seconds > LEAST_SECONDS


def slowest(seconds: Sequence[float]) -> Straggler:
    """The slowest of several workers, the first of them where two are alike.

    Args:
        seconds: that each takes a step, by rank; of two workers or more.
    """
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    others = median([*seconds[:rank], *seconds[rank + 1 :]])
    more = seconds[rank] - others
    return Straggler(rank, more, more / others if others > 0 else float(more > 0))


class StragglerWatch:
    """Looks at all workers' seconds of each step, and names who is slow once, until it is another or nobody.

    Args:
        hosts: where each worker is, by rank.
        notice: hears it.
    """

    def __init__(self, hosts: Sequence[str], notice: Callable[[str], None]) -> None:
        self._hosts, self._notice = hosts, notice
        self._sums = [0.0] * len(hosts)
        self._steps = -1  # the first step of a process warms it up
        self._named: int | None = None

    def look(self, seconds: Sequence[float]) -> dict[str, float]:
        """Take one step; answers the measures of a window when one is full.

        Args:
            seconds: of each worker, by rank.
        """
        self._steps += 1
        if len(self._hosts) < 2 or self._steps == 0:
            return {}
        self._sums = [total + one for total, one in zip(self._sums, seconds, strict=True)]
        if self._steps < WINDOW:
            return {}
        found = slowest([total / WINDOW for total in self._sums])
        self._sums, self._steps = [0.0] * len(self._hosts), 0
        self._tell(found)
        return {"slowest_worker": float(found.rank), "straggler_seconds": found.seconds}

    def _tell(self, found: Straggler) -> None:
        if found.holds_up:
            if self._named != found.rank:
                self._notice(
                    f"worker {found.rank} on {self._hosts[found.rank]} holds up the others: {found.seconds:.2g} s a "
                    f"step, {found.share:.0%}, more than their median over {WINDOW} steps"
                )
            self._named = found.rank
        elif self._named is not None:
            self._notice(f"worker {self._named} on {self._hosts[self._named]} holds up nobody any more")
            self._named = None


def host_names(workers: Workers, device: torch.device) -> list[str]:
    """Where each worker is, by rank; every worker calls it.

    Args:
        workers: the group.
        device: where its collectives take their tensors.
    """
    name = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0")
    own = torch.frombuffer(bytearray(name), dtype=torch.uint8)[None].to(device)
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in workers.gather_values(own).tolist()]
