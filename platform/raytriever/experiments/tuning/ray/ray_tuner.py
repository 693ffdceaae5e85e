"""Run the trials of a sweep under Ray Tune: searcher, ASHA scheduler, stopper and tuner.

Tune stores its own state as pickles, in a folder that is deleted at the end of the call. Instead, a sweep resumes from
`trials.json` and the run directories of its trials."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune import Stopper
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import Searcher

from raytriever.cluster.events_and_restarts import open_event_queue
from raytriever.cluster.gpus_and_placement import count_nodes, gpus_each, resources_of_trial
from raytriever.cluster.ray_session import DriverContext
from raytriever.cluster.train.trainer import FitThread
from raytriever.cluster.train.validate_checkpoint import DEV
from raytriever.core.progress import activity
from raytriever.experiments.tuning.ray.run_trial import STEP, SweepContext, TrialJob, run_trial
from raytriever.experiments.tuning.ray.shared_training_data import SweepData
from raytriever.experiments.tuning.ray.trial_manager import SweepPlan, TrialManager
from raytriever.experiments.tuning.space import BATCH_AUC, SearchConfig
from raytriever.experiments.tuning.trial_log import FINISHED, STOPPED
from raytriever.tracking.step_log import read_curve
from raytriever.training.training_settings import DEV_LOSS

Curve = Sequence[tuple[int, float]]
NO_STEP_LIMIT = 10**9
MAX_FAILURES = 3  # restarts of a trial whose process died; each resumes from the trial's checkpoint
_RAY_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # Tune would write log files for every trial
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # seconds between saves of Tune's state, which is never restored
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last report of a trial lacks the watched metric
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints even with `verbose=0`
}


def watched_metric(search: SearchConfig) -> str | None:
    """Return the name, in events, of the metric by which trials are stopped early; None without early stopping."""
    if not search.asha:
        return None
    return search.asha_metric if search.asha_metric in (BATCH_AUC, DEV_LOSS) else DEV + search.asha_metric


class _Stateless:
    """Base of a searcher, scheduler or stopper of Tune whose state is never stored; see the top of this file."""

    def save(self, checkpoint_path: str) -> None:
        """Write an empty file."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class TrialProposals(_Stateless, Searcher):
    """Tune's searcher. `next_job` returns a trial. It returns None if earlier trials must end first, and raises
    `StopIteration` after the last trial. When a trial ends, `on_end` gets its number, its last result, and whether its
    process died too often."""

    def __init__(
        self, next_job: Callable[[], TrialJob | None], on_end: Callable[[int, dict[str, Any] | None, bool], None]
    ) -> None:
        super().__init__()
        self._next_job, self._on_end = next_job, on_end
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
        """See `Searcher`. An error of `on_end` is stored in `failure`: Tune would only log it and continue."""
        try:
            self._on_end(self._numbers[trial_id], result, error)
        except Exception as failure:
            self.failure = self.failure or failure


class Asha(_Stateless, AsyncHyperBandScheduler):
    """Asynchronous successive halving (Li et al., 2020) that includes the trials of earlier calls.

    Args:
        metric, larger: metric that compares trials, and whether larger values are better.
        grace: no trial is stopped before this step.
        factor: at each rung, one in this many trials continues.
        curve_of: function that returns the curve of a resumed trial, given its number.
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
        super().__init__(STEP, metric, mode, max_t=NO_STEP_LIMIT, grace_period=grace, reduction_factor=factor)
        self._curve_of = curve_of
        for number, curve in enumerate(earlier):
            # The scheduler reads nothing of a trial but its id.
            self._replay(SimpleNamespace(trial_id=f"earlier-{number}"), curve)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See `TrialScheduler`."""
        self._replay(trial, self._curve_of(trial.config["job"].number))

    def _replay(self, trial: Any, curve: Curve) -> None:
        super().on_trial_add(None, trial)
        for step, value in curve:
            super().on_trial_result(None, trial, {STEP: step, self._metric: value})


class SweepStopper(_Stateless, Stopper):
    """Stopper that ends all trials after a call of `stop`."""

    def __init__(self) -> None:
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """Stop all trials from now on."""
        self._is_stopped.set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """See `Stopper`."""
        return False

    def stop_all(self) -> bool:
        """See `Stopper`."""
        return self._is_stopped.is_set()


def run_trials(manager: TrialManager, plan: SweepPlan, search: SearchConfig, data: SweepData) -> None:
    """Run the trials that have not ended. An interruption stops the running trials."""
    workers, stopper = plan.base.training.workers[1], SweepStopper()
    nodes, gpus = count_nodes(), gpus_each("trial_gpus", search.trial_gpus)
    for name, value in _RAY_TUNE.items():  # values that the user has set take precedence
        os.environ.setdefault(name, value)
    with open_event_queue(manager.record) as events, TemporaryDirectory(prefix="raytriever-") as state:
        context = SweepContext(
            queue=events.queue,
            driver=DriverContext(),
            trials_per_node=math.ceil(plan.at_once / nodes),
            watched_metric=watched_metric(search),
            searches_corpus=plan.metric != DEV_LOSS,
        )
        searcher = TrialProposals(manager.next_job, manager.record_end)
        trainable = tune.with_parameters(run_trial, tables=data.tables, context=context)
        tuner = tune.Tuner(
            tune.with_resources(trainable, tune.PlacementGroupFactory([resources_of_trial(workers, gpus)])),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=_scheduler(manager, search, context.watched_metric) if context.watched_metric else None,
                num_samples=manager.remaining,
                max_concurrent_trials=plan.at_once,
                # If a trial has several workers, its process ends with the trial. Then a stop leaves no worker behind.
                reuse_actors=workers == 1,
                trial_name_creator=lambda trial: str(trial.trial_id),
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=state,
                stop=stopper,
                failure_config=tune.FailureConfig(max_failures=MAX_FAILURES),
                verbose=0,
            ),
        )
        fit = FitThread(tuner.fit)
        fit.start()
        try:
            with activity(lambda seconds: f"{manager.status()}: {seconds:.0f} s"):
                fit.wait(events.has_failed)
        finally:
            manager.stop_recording_ends()
            fit.end(stopper.stop)
    if failure := fit.failure or searcher.failure:
        raise failure


def _scheduler(manager: TrialManager, search: SearchConfig, watched: str) -> Asha:
    def curve_of(number: int) -> list[tuple[int, float]]:
        return read_curve(manager.folder_of(number), watched)

    ended = [trial.number for trial in manager.trials if trial.status in (FINISHED, STOPPED)]
    earlier = [curve_of(number) for number in ended]
    return Asha(watched, watched != DEV_LOSS, search.asha_grace, search.asha_factor, earlier, curve_of)
