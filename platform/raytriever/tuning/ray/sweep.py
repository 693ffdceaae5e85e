"""Run a sweep: many trials under Ray Tune, the best one evaluated on the test split, everything logged and plotted.

1. Check the space, every trial of a grid (`planning`), the directory, data sets and models before anything is written.
2. Prepare once what all trials share (`training_data`). Tune runs the trials (`tuner`, `trial`), each an ordinary run
   in its own directory, recorded on the driver by one writer (`manager`).
3. Evaluate the trial with the best dev metric on the test split, next to the untrained encoder and BM25.

An interrupted sweep resumes when called again: finished and stopped trials stay, a running one resumes from its newest
checkpoint, and failed ones are repeated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import yaml

from raytriever.cluster.session import check_cluster, count_gpus, ray_session
from raytriever.config import Config
from raytriever.config.settings import hash_of
from raytriever.errors import ConfigError
from raytriever.experiment.directory import METRICS, RunDirectory
from raytriever.tracking.mlflow_tracker import MlflowServer, check_uri, tracking_uri
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import STAGE, closing
from raytriever.tuning.outcome import evaluate_best, read_best, write_sweep
from raytriever.tuning.ray.manager import TrialManager
from raytriever.tuning.ray.planning import plan_sweep, sweep_settings, watched_metric
from raytriever.tuning.ray.training_data import SweepData, trial_config
from raytriever.tuning.ray.tuner import run_trials
from raytriever.tuning.space import SearchConfig, SearchSpace
from raytriever.tuning.trial_log import FAILED, FINISHED, STOPPED, TRIAL_LOG, Trial, find_best, read_trials

COORDINATORS = 2  # logical processors that a session has beside the workers it is asked for


@dataclass(frozen=True)
class SweepResult:
    """What a person is told at the end.

    Args:
        path: the sweep's directory.
        trials: all of them.
        metric: what the best is best by.
        best: None where no trial finished.
        rows: of the best one, on the test split: metrics by system.
        is_new: whether this call did anything.
    """

    path: Path
    trials: list[Trial]
    metric: str
    best: Trial | None
    rows: dict[str, dict[str, float]]
    is_new: bool

    @property
    def failed(self) -> list[Trial]:
        """Those that failed."""
        return [trial for trial in self.trials if trial.status == FAILED]


def run_sweep(
    base: Config, search: SearchConfig, output: Path, run_name: str, fresh: bool, say: Callable[[str], None]
) -> SweepResult:
    """Make all trials there are to be, and measure the best one; `say` hears a line at every turn.

    Args:
        base: settings of all trials, save for what is searched.
        search: what is searched, and how.
        output: the sweep's directory.
        run_name: at the tracker.
        fresh: whether what an earlier sweep left there is removed.

    Raises:
        UserError: something a user can mend; trials that fail are told in what is returned.
    """
    began = time.monotonic()
    space, plan = plan_sweep(base, search)
    run = _open_directory(base, search, space, output, fresh)
    trials = [] if run.state == "new" else read_trials(output, [one.key for one in space.dimensions])
    best = find_best(trials, plan.metric)
    over = len(trials) >= plan.trials and all(trial.status in (FINISHED, STOPPED) for trial in trials)
    if over and best is not None and (rows := read_best(output, trial_config(base, dict(best.settings)))):
        send_pending(output, tracking_uri(), say)
        return SweepResult(output, trials, plan.metric, best, rows, is_new=False)

    check_uri(tracking_uri())
    check_cluster()
    material = SweepData(say)
    material.make_ready(base, space)
    server = MlflowServer(tracking_uri())
    run.begin(_dump(sweep_settings(base, search, space)))
    tracker = Spool.open(server, output, run_name)
    with closing(tracker):
        tags = {STAGE: "tune", "run_directory": str(output.resolve())}
        tracker.describe(sweep_settings(base, search, space), material.record(), tags)
        workers = base.training.workers[1]
        wanted = workers * (search.trials_at_once or max(1, len(os.sched_getaffinity(0)) // workers))
        with ray_session(wanted - COORDINATORS):
            plan = replace(plan, at_once=search.trials_at_once or _places(workers))
            conductor = TrialManager(output, plan, material, trials, tracker, run_name, say)
            try:
                if conductor.left:
                    run_trials(conductor, plan, search, material)
            finally:
                conductor.close()
        trials = conductor.trials
        best, rows = find_best(trials, plan.metric), {}
        if best is not None:
            folder = conductor.folder_of(best.number)
            config = trial_config(base, dict(best.settings))
            rows = evaluate_best(output, best, config, folder, tracker, run_name, say, began)
        write_sweep(output, trials, space, plan.metric, watched_metric(base, search), tracker)
    return SweepResult(output, trials, plan.metric, best, rows, is_new=True)


def _open_directory(base: Config, search: SearchConfig, space: SearchSpace, output: Path, fresh: bool) -> RunDirectory:
    """The sweep's directory; see `RunDirectory.open`."""
    run = RunDirectory.open(output, sweep_settings(base, search, space), fresh)
    if run.state != "new" and not (output / TRIAL_LOG).is_file() and (output / METRICS).is_file():
        raise ConfigError("holds a run and no sweep", f"--output {output}", "give another directory")
    return run


def _dump(settings: dict[str, Any]) -> str:
    return yaml.safe_dump({"hash": hash_of(settings), **settings}, sort_keys=False, allow_unicode=True)


def _places(workers: int) -> int:
    """How many trials of so many workers the cluster has room for, or would make; a trial waits where it has none."""
    return max(1, (count_gpus() or int(ray.cluster_resources().get("CPU", 0))) // workers)
