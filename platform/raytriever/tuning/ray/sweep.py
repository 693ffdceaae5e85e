"""Run a sweep: many trials under Ray Tune, the best one evaluated on the test split, everything logged and plotted.

1. Check the space, every trial of a grid (`planning`), the directory, data sets and models before anything is written.
2. Prepare once what all trials share (`training_data`). Tune runs the trials (`tuner`, `trial`), each an ordinary run
   in its own directory, recorded on the driver by one writer (`manager`).
3. Evaluate the trial with the best dev metric on the test split, next to the untrained encoder and BM25.

An interrupted sweep resumes when called again: finished and stopped trials stay, a running one resumes from its newest
checkpoint, and failed ones are repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from raytriever.cluster.placement import count_slots, gpus_of_trial
from raytriever.cluster.session import check_cluster, ray_session
from raytriever.config import Config
from raytriever.config.settings import hash_of
from raytriever.errors import ConfigError, setting
from raytriever.experiment.directory import METRICS, RunDirectory
from raytriever.machine import usable_cores
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import STAGE, closing
from raytriever.tracking.trackers import DEFAULT_TRACKERS, check_trackers, open_trackers
from raytriever.tuning.outcome import evaluate_best, read_best, write_sweep
from raytriever.tuning.ray.manager import TrialManager
from raytriever.tuning.ray.planning import plan_sweep, sweep_settings, watched_metric
from raytriever.tuning.ray.training_data import SweepData, trial_config
from raytriever.tuning.ray.tuner import run_trials
from raytriever.tuning.space import SearchConfig, SearchSpace
from raytriever.tuning.trial_log import FAILED, FINISHED, STOPPED, TRIAL_LOG, Trial, find_best, read_trials

COORDINATORS = 2  # logical CPUs that `ray_session` adds to those of the workers


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep.

    Args:
        path: the sweep's directory.
        trials: all trials.
        metric: metric that decides which trial is the best.
        best: the best trial; None if no trial finished.
        rows: metrics of the best trial on the test split, by system.
        is_new: False if an earlier call had already finished the sweep.
    """

    path: Path
    trials: list[Trial]
    metric: str
    best: Trial | None
    rows: dict[str, dict[str, float]]
    is_new: bool

    @property
    def failed(self) -> list[Trial]:
        """The failed trials."""
        return [trial for trial in self.trials if trial.status == FAILED]


def run_sweep(
    base: Config,
    search: SearchConfig,
    output: Path,
    run_name: str,
    fresh: bool,
    log: Callable[[str], None],
    trackers: Sequence[str] = DEFAULT_TRACKERS,
) -> SweepResult:
    """Run all trials of a sweep, and evaluate the best one on the test split.

    Args:
        base: settings of all trials, except for those that are searched.
        search: search space, searcher and number of trials.
        output: the sweep's directory.
        run_name: at the tracker.
        fresh: whether an earlier sweep in the directory is removed.
        log: called with lines about the progress.
        trackers: names of the trackers.

    Raises:
        UserError: a setting, a data set, the model or the directory is not usable. Failed trials raise nothing; they
            are in the result.
    """
    started = time.monotonic()
    space, plan = plan_sweep(base, search)
    run = _open_directory(base, search, space, output, fresh)
    trials = [] if run.state == "new" else read_trials(output, [one.key for one in space.dimensions])
    best = find_best(trials, plan.metric)
    has_ended = len(trials) >= plan.trials and all(trial.status in (FINISHED, STOPPED) for trial in trials)
    if has_ended and best is not None and (rows := read_best(output, trial_config(base, dict(best.settings)))):
        send_pending(output, trackers, log)
        return SweepResult(path=output, trials=trials, metric=plan.metric, best=best, rows=rows, is_new=False)

    check_trackers(trackers)
    check_cluster()
    data = SweepData(log)
    data.prepare(base, space)
    clients = open_trackers(trackers)
    run.begin(_dump(sweep_settings(base, search, space)))
    tracker = Spool.open(clients, output, run_name)
    with closing(tracker):
        tags = {STAGE: "tune", "run_directory": str(output.resolve())}
        tracker.describe(sweep_settings(base, search, space), data.record(), tags)
        workers = base.training.workers[1]
        requested = workers * (search.trials_at_once or max(1, usable_cores() // workers))
        with ray_session(requested - COORDINATORS):
            plan = replace(
                plan, at_once=search.trials_at_once or count_slots(workers, gpus_of_trial(search.trial_gpus))
            )
            manager = TrialManager(
                folder=output, plan=plan, data=data, trials=trials, tracker=tracker, run_name=run_name, log=log
            )
            try:
                if manager.remaining:
                    run_trials(manager, plan, search, data)
            finally:
                manager.close()
        trials = manager.trials
        best, rows = find_best(trials, plan.metric), {}
        if best is not None:
            folder = manager.folder_of(best.number)
            config = trial_config(base, dict(best.settings))
            rows = evaluate_best(output, best, config, folder, tracker, run_name, log, started)
        write_sweep(output, trials, space, plan.metric, watched_metric(search), tracker)
    return SweepResult(path=output, trials=trials, metric=plan.metric, best=best, rows=rows, is_new=True)


def _open_directory(base: Config, search: SearchConfig, space: SearchSpace, output: Path, fresh: bool) -> RunDirectory:
    """Return the sweep's directory; raise `ConfigError` if it holds a run that is no sweep."""
    run = RunDirectory.open(output, sweep_settings(base, search, space), fresh)
    if run.state != "new" and not (output / TRIAL_LOG).is_file() and (output / METRICS).is_file():
        raise ConfigError("holds a training run, not a sweep", setting("output", output), "give another directory")
    return run


def _dump(settings: dict[str, Any]) -> str:
    return yaml.safe_dump({"hash": hash_of(settings), **settings}, sort_keys=False, allow_unicode=True)
