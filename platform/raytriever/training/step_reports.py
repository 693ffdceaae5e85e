"""Reports of steps, whose results are read from a GPU while it computes the next step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from raytriever.training.monitoring import Throughput
from raytriever.training.parallel.strategy import Readout, Update, finite_or_refused

_TOKENS, _FLOPS = "tokens of the global batch", "FLOPs of the global batch"


class _Unreported(NamedTuple):
    """Step whose results are on their way: `phases` is called after `readout` is read."""

    step: int
    readout: Readout
    phases: Callable[[], dict[str, float]]
    others: dict[str, float]


class StepReports:
    """Reports of the steps of one worker, each under its own step.

    On a GPU a step is read after the next one was started: the processor is always a step ahead. A processor that
    computes the step itself reads it at once.

    Attributes:
        own_seconds: seconds of the last step that was read until this worker first waited for the others.
    """

    def __init__(
        self,
        throughput: Throughput,
        batch_size: int,
        report: Callable[[int, Mapping[str, float]], None],
        reads_late: bool,
    ) -> None:
        self._throughput, self._batch_size, self._report, self._reads_late = throughput, batch_size, report, reads_late
        self._unreported: _Unreported | None = None
        self.own_seconds = 0.0

    def add(
        self,
        step: int,
        update: Update,
        work: tuple[float, float],
        phases: Callable[[], dict[str, float]],
        began: float,
        others: Mapping[str, float],
    ) -> None:
        """Start to read a step; raises as `finish`, for this step or the one before. All workers call it.

        Args:
            step: counted from 0.
            update: its result.
            work: tokens and FLOPs of this worker.
            phases: returns the seconds of each phase, once the results are read.
            began: when the step began, by `time.perf_counter`, the wait for its batch included.
            others: further metrics.
        """
        tokens, flops = self._throughput.total(work)
        statistics = {"loss": update.output.value, **update.output.statistics, "gradient_norm": update.norm}
        readout = Readout({**statistics, _TOKENS: tokens, _FLOPS: flops})
        self.finish()
        others = {**others, "step_seconds": time.perf_counter() - began}
        self._unreported = _Unreported(step, readout, phases, others)
        if not self._reads_late:
            self.finish()

    def finish(self) -> None:
        """Report the step that is not reported yet; called before anything of a later step is saved or reported.

        Raises:
            NotFiniteError: its loss or gradient is not finite. Neither it nor a later step has changed a weight.
        """
        if self._unreported is None:
            return
        (step, readout, phases, others), self._unreported = self._unreported, None
        statistics = readout.read()
        finite_or_refused(statistics["loss"], statistics["gradient_norm"], step)
        tokens, flops = statistics.pop(_TOKENS), statistics.pop(_FLOPS)
        seconds = phases()
        # A step after which the processor waited for nothing, as the first one, seems short to it.
        waited = others["data_wait_seconds"]
        others["step_seconds"] = max(others["step_seconds"], waited + sum(seconds.values()))
        self.own_seconds = waited + seconds.get("encode_seconds", 0.0)
        rates = self._throughput.rates(tokens, flops, self._batch_size, others["step_seconds"])
        self._report(step + 1, {**statistics, **others, **seconds, **rates})
