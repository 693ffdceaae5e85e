"""Where the time of a step goes, told apart without touching whoever takes the step.

Encoding ends where the loss is called, the loss where it returns, the backward where the optimiser is called; so two
hooks on the loss and one on the optimiser mark a step of any strategy. Under gradient caching the second pass over the
texts counts as backward; so do, everywhere, the synchronisation and the clipping of gradients.

On a GPU the marks are events in its own queue, read when the step is over: the step waits for the device once, at its
end, where little is left to wait for since the gradient's norm was read.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

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
