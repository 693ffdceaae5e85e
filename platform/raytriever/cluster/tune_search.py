"""What Ray Tune asks during a sweep: which trial is next, which one is behind, and whether all is to stop.

Tune keeps a state of its own, of pickles; it lies in a folder that goes with the call. What a sweep goes on from is
`trials.json` and the run directories of its trials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune import Stopper
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import Searcher

from raytriever.cluster.tune_trial import STEP, TrialJob

NEVER = 10**9  # steps
Curve = Sequence[tuple[int, float]]


class Proposals(Searcher):
    """Gives out the trials of a sweep.

    Args:
        next_job: the next trial; None where earlier ones must end first. Raises StopIteration when there are no more.
        ended: hears of a trial that is over: its number, what it reported last, whether its process died too often.
    """

    def __init__(
        self, next_job: Callable[[], TrialJob | None], ended: Callable[[int, dict[str, Any] | None, bool], None]
    ) -> None:
        super().__init__()
        self._next_job, self._ended = next_job, ended
        self._numbers: dict[str, int] = {}
        self.failure: Exception | None = None

    def suggest(self, trial_id: str) -> Any:
        """See `Searcher`."""
        if self.failure is not None:
            return Searcher.FINISHED
        try:
            job = self._next_job()
        except StopIteration:
            return Searcher.FINISHED
        if job is None:
            return None
        self._numbers[trial_id] = job.number
        return {"job": job}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """See `Searcher`; what goes wrong is kept in `failure`, because Tune would log it and go on."""
        try:
            self._ended(self._numbers[trial_id], result, error)
        except Exception as failure:
            self.failure = self.failure or failure

    def save(self, checkpoint_path: str) -> None:
        """Nothing: see the head of this file."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see the head of this file."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class _Earlier:
    """A trial of an earlier call, as far as the scheduler looks."""

    trial_id: str


class Asha(AsyncHyperBandScheduler):
    """Asynchronous successive halving (Li et al., 2020) that remembers the trials of earlier calls.

    Args:
        metric, larger: what trials are compared by, and whether more of it is better.
        grace: steps before which no trial is stopped.
        factor: one in so many goes on at each rung.
        earlier: the curves of trials that are over.
        curve_of: the curve of a trial that goes on, by its number.
    """

    def __init__(
        self,
        metric: str,
        larger: bool,
        grace: int,
        factor: int,
        earlier: Sequence[Curve],
        curve_of: Callable[[int], Curve],
    ) -> None:
        mode = "max" if larger else "min"
        super().__init__(STEP, metric, mode, max_t=NEVER, grace_period=grace, reduction_factor=factor)
        self._curve_of = curve_of
        for number, curve in enumerate(earlier):
            self._replay(_Earlier(f"earlier-{number}"), curve)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See `TrialScheduler`."""
        self._replay(trial, self._curve_of(trial.config["job"].number))

    def _replay(self, trial: Any, curve: Curve) -> None:
        super().on_trial_add(None, trial)
        for step, value in curve:
            super().on_trial_result(None, trial, {STEP: step, self._metric: value})

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: see the head of this file."""
        Path(checkpoint_path).touch()


class StopAll(Stopper):
    """Stops every trial once it is told to."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def tell(self) -> None:
        """From now on."""
        self._told.set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """See `Stopper`."""
        return False

    def stop_all(self) -> bool:
        """See `Stopper`."""
        return self._told.is_set()

    def __getstate__(self) -> dict[str, Any]:
        return {}
