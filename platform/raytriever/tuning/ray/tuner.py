"""Run the trials of a sweep under Ray Tune: searcher, ASHA scheduler, stopper and tuner.

Tune keeps a state of its own, of pickles, in a folder that is deleted with the call. A sweep resumes from `trials.json`
and the run directories of its trials."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray import tune
from ray.tune import Stopper
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import Searcher

from raytriever.activity import activity
from raytriever.cluster.event_queue import open_event_queue
from raytriever.cluster.session import DriverContext, count_gpus
from raytriever.cluster.train.fit import FitThread
from raytriever.tracking.steps import read_curve
from raytriever.tuning.ray.manager import SweepPlan, TrialManager
from raytriever.tuning.ray.planning import watched_metric
from raytriever.tuning.ray.training_data import SweepData
from raytriever.tuning.ray.trial import STEP, SweepContext, TrialJob, run_trial
from raytriever.tuning.space import DEV_LOSS, SearchConfig
from raytriever.tuning.trial_log import FINISHED, STOPPED

NEVER = 10**9  # steps
Curve = Sequence[tuple[int, float]]


class TrialProposals(Searcher):
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
        for number, points in enumerate(earlier):
            self._replay(_Earlier(f"earlier-{number}"), points)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See `TrialScheduler`."""
        self._replay(trial, self._curve_of(trial.config["job"].number))

    def _replay(self, trial: Any, points: Curve) -> None:
        super().on_trial_add(None, trial)
        for step, value in points:
            super().on_trial_result(None, trial, {STEP: step, self._metric: value})

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: see the head of this file."""
        Path(checkpoint_path).touch()


class SweepStopper(Stopper):
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


# A trial whose process dies is begun again so often, and goes on from its checkpoint.
DEATHS = 3
_RAY_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files of its own for every trial
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # of a state that nothing goes on from
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last report of a trial tells how it ended, not how far it is
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # which prints even where it is told not to
}


def run_trials(conductor: TrialManager, plan: SweepPlan, search: SearchConfig, material: SweepData) -> None:
    """Run all trials that are left; an interruption stops them and comes back at once."""
    workers, stop = plan.base.training.workers[1], SweepStopper()
    nodes = sum(node["Alive"] for node in ray.nodes())
    for name, value in _RAY_TUNE.items():
        os.environ.setdefault(name, value)
    with open_event_queue(conductor.record) as events, TemporaryDirectory(prefix="raytriever-") as state:
        around = SweepContext(
            events.queue,
            DriverContext(),
            math.ceil(plan.at_once / nodes),
            watched_metric(plan.base, search),
            plan.metric != DEV_LOSS,
        )
        proposals = TrialProposals(conductor.next_job, conductor.ended)
        trainable = tune.with_parameters(run_trial, tables=material.tables, around=around)
        tuner = tune.Tuner(
            tune.with_resources(trainable, tune.PlacementGroupFactory([_bundle(workers)])),
            tune_config=tune.TuneConfig(
                search_alg=proposals,
                scheduler=_scheduler(conductor, search, around.reported) if around.reported else None,
                num_samples=conductor.left,
                max_concurrent_trials=plan.at_once,
                # A group's processes end with the trial's, so that none is left when it is stopped.
                reuse_actors=workers == 1,
                trial_name_creator=lambda trial: str(trial.trial_id),
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=state,
                stop=stop,
                failure_config=tune.FailureConfig(max_failures=DEATHS),
                verbose=0,
            ),
        )
        fit = FitThread(tuner.fit)
        fit.start()
        try:
            with activity(lambda seconds: f"{conductor.state()}: {seconds:.0f} s"):
                fit.wait(events.has_failed)
        finally:
            conductor.leave()
            fit.end(stop.tell)
    if failure := fit.failure or proposals.failure:
        raise failure


def _bundle(workers: int) -> dict[str, float]:
    """What a trial's own process takes: all it trains on, or of several workers, who take it themselves, nothing."""
    if workers > 1:
        return {"node:__internal_head__": 0.001}
    return {"CPU": 1.0, "GPU": 1.0} if count_gpus() else {"CPU": 1.0}


def _scheduler(conductor: TrialManager, search: SearchConfig, watched: str) -> Asha:
    def curve_of(number: int) -> list[tuple[int, float]]:
        return read_curve(conductor.folder_of(number), watched)

    over = [trial.number for trial in conductor.trials if trial.status in (FINISHED, STOPPED)]
    earlier = [curve_of(number) for number in over]
    return Asha(watched, watched != DEV_LOSS, search.asha_grace, search.asha_factor, earlier, curve_of)
