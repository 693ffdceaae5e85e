"""A sweep: many trials under Ray Tune, the best one measured on the test split, all of it told and drawn.

1. Look before touching: the space, the directory, data sets, models, every trial of a grid.
2. Make ready once what all trials share (`tune_material`); Tune runs them (`tune_trial`), each an ordinary run in
   a directory of its own, told on the driver by one writer (`tune_conductor`).
3. The best trial by a figure on the dev split is measured on the test split, as it was before and beside BM25.

A sweep that was interrupted goes on when called again: finished and stopped trials stay, one under way goes on from its
newest checkpoint, and failed ones are tried again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import yaml
from ray import tune

from raytriever.cluster.monitor import listening
from raytriever.cluster.session import gpus, ray_session
from raytriever.cluster.tune_best import measure_best, measured_best
from raytriever.cluster.tune_conductor import Conductor, Plan, told
from raytriever.cluster.tune_material import SweepMaterial, config_of
from raytriever.cluster.tune_outcome import write_sweep
from raytriever.cluster.tune_search import Asha, Proposals, StopAll
from raytriever.cluster.tune_trial import Circumstances, run_trial
from raytriever.cluster.validation_sets import DEV, dev_protocol
from raytriever.config import Config, check_config, to_dict
from raytriever.config.search_config import BATCH_AUC, DEFAULT_TRIALS, DEV_LOSS, SearchConfig
from raytriever.config.search_names import search_space
from raytriever.config.search_sampler import GridSampler, build_sampler
from raytriever.config.search_space import SearchSpace
from raytriever.config.settings import hash_of
from raytriever.errors import ConfigError, UserError
from raytriever.options import check_options, did_you_mean
from raytriever.retrieval.protocol import Protocol
from raytriever.retrieval.sweep import BOOKS, FAILED, FINISHED, STOPPED, Trial, best_of, read_trials
from raytriever.tracking.mlflow_tracker import MlflowServer, tracking_uri
from raytriever.tracking.spool import Spool, send_what_waits
from raytriever.tracking.steps import curve
from raytriever.tracking.tracker import closing
from raytriever.training.run_directory import METRICS, RunDirectory

# A trial whose process dies is begun again so often, and goes on from its checkpoint.
DEATHS = 3
# Trials that are told to stop have so long to do it.
STOP_SECONDS = 10.0
_RAY_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # files of its own for every trial
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # of a state that nothing goes on from
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # the last report of a trial tells how it ended, not how far it is
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # which prints even where it is told not to
}
# These decide how a sweep is carried out, or how far, and may differ where it goes on.
_MAY_CHANGE = ("trials", "trials_at_once")
SWEEP = "sweep"
COORDINATORS = 2  # logical processors that a session has beside the workers it is asked for


@dataclass(frozen=True)
class Swept:
    """What a person is told at the end.

    Args:
        path: the sweep's directory.
        trials: all of them.
        metric: what the best is best by.
        best: None where no trial finished.
        rows: of the best one, on the test split: metrics by system.
        anew: whether this call did anything.
    """

    path: Path
    trials: list[Trial]
    metric: str
    best: Trial | None
    rows: dict[str, dict[str, float]]
    anew: bool

    @property
    def failed(self) -> list[Trial]:
        """Those that failed."""
        return [trial for trial in self.trials if trial.status == FAILED]


def run_sweep(
    base: Config, search: SearchConfig, output: Path, run_name: str, fresh: bool, say: Callable[[str], None]
) -> Swept:
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
    space, plan = _planned(base, search)
    run = _open_directory(base, search, space, output, fresh)
    trials = [] if run.state == "new" else read_trials(output)
    best = best_of(trials, plan.metric)
    over = len(trials) >= plan.trials and all(trial.status in (FINISHED, STOPPED) for trial in trials)
    if over and best is not None and (rows := measured_best(output, config_of(base, dict(best.settings)))):
        send_what_waits(output, tracking_uri(), say)
        return Swept(output, trials, plan.metric, best, rows, anew=False)

    material = SweepMaterial(say)
    material.make_ready(base, space)
    server = MlflowServer(tracking_uri())
    run.begin(_dump(_settings(base, search, space)))
    tracker = Spool.open(server, output, run_name)
    with closing(tracker):
        tags = {"run_directory": str(output.resolve())}
        tracker.describe(_settings(base, search, space), material.record(), tags)
        workers = base.training.workers[1]
        wanted = workers * (search.trials_at_once or max(1, len(os.sched_getaffinity(0)) // workers))
        with ray_session(wanted - COORDINATORS):
            plan = replace(plan, at_once=search.trials_at_once or _places(workers))
            conductor = Conductor(output, plan, material, trials, tracker, run_name, say)
            try:
                if conductor.left:
                    _run_trials(conductor, plan, search, material)
            finally:
                conductor.close()
        trials = conductor.trials
        best, rows = best_of(trials, plan.metric), {}
        if best is not None:
            folder = conductor.folder_of(best.number)
            config = config_of(base, dict(best.settings))
            rows = measure_best(output, best, config, folder, tracker, run_name, say, began)
        write_sweep(output, trials, space, plan.metric, _watched(base, search), tracker)
    return Swept(output, trials, plan.metric, best, rows, anew=True)


def _planned(base: Config, search: SearchConfig) -> tuple[SearchSpace, Plan]:
    """What is to be done, with every trial of a grid looked at."""
    check_options(search)
    check_config(base)
    space = search_space(search.search_space)
    known = (*Protocol().metrics, DEV_LOSS)
    if search.metric not in known:
        raise ConfigError(f"unknown metric {search.metric!r}", "--metric", did_you_mean(search.metric, known))
    scales = [one.key for one in space.dimensions if one.section == "loss"]
    for flag, metric in (("--metric", search.metric), ("--asha-metric", search.asha_metric if search.asha else "")):
        if metric == DEV_LOSS and scales:
            remedy = f"give another, such as {BATCH_AUC if flag == '--asha-metric' else 'ndcg_at_10'}"
            raise ConfigError(
                f"{DEV_LOSS} is of another scale in each trial, because {scales[0]} is searched", flag, remedy
            )
    _watched(base, search)  # here only to be refused
    sampler = build_sampler(search.searcher, space, base.training.seed)
    trials = search.trials or DEFAULT_TRIALS
    if not any(one.is_range for one in space.dimensions):
        trials = min(trials, len(space.grid()))
    if isinstance(sampler, GridSampler):
        trials = min(search.trials or len(sampler.points), len(sampler.points))
        for number, point in enumerate(sampler.points[:trials]):
            try:
                config_of(base, point)
            except UserError as error:
                where = f"trial {number} ({told(point)})" + (f": {error.where}" if error.where else "")
                raise type(error)(error.what, where, error.remedy) from error
    return space, Plan(base, sampler, search.searcher, trials, search.metric, 1)


def _watched(base: Config, search: SearchConfig) -> str | None:
    """What trials are stopped by, as it is told at looks; None where none is stopped."""
    if not search.asha:
        return None
    if search.asha_metric in (BATCH_AUC, DEV_LOSS):
        return search.asha_metric
    known = dev_protocol(base.training.best_metric).metrics
    if search.asha_metric not in known:
        remedy = did_you_mean(search.asha_metric, (*known, BATCH_AUC, DEV_LOSS))
        raise ConfigError(f"unknown metric {search.asha_metric!r}", "--asha-metric", remedy)
    if not base.validation.sources(base.training.best_metric, base.data.dev_split):
        remedy = f"give --eval-datasets own, or --asha-metric {BATCH_AUC}"
        raise ConfigError(f"{search.asha_metric} is not measured while training", "--asha-metric", remedy)
    return DEV + search.asha_metric


def _open_directory(base: Config, search: SearchConfig, space: SearchSpace, output: Path, fresh: bool) -> RunDirectory:
    """The sweep's directory; see `RunDirectory.open`."""
    run = RunDirectory.open(output, _settings(base, search, space), fresh)
    if run.state != "new" and not (output / BOOKS).is_file() and (output / METRICS).is_file():
        raise ConfigError("holds a run and no sweep", f"--output {output}", "give another directory")
    return run


def _settings(base: Config, search: SearchConfig, space: SearchSpace) -> dict[str, Any]:
    """All that decides what the trials of a sweep are."""
    sweep = {name: value for name, value in asdict(search).items() if name not in _MAY_CHANGE}
    return {**to_dict(base), SWEEP: {**sweep, "search_space": space.to_dict()}}


def _dump(settings: dict[str, Any]) -> str:
    return yaml.safe_dump({"hash": hash_of(settings), **settings}, sort_keys=False, allow_unicode=True)


def _places(workers: int) -> int:
    """How many trials of so many workers the cluster has room for, or would make; a trial waits where it has none."""
    return max(1, (gpus() or int(ray.cluster_resources().get("CPU", 0))) // workers)


def _run_trials(conductor: Conductor, plan: Plan, search: SearchConfig, material: SweepMaterial) -> None:
    """Run all trials that are left; an interruption stops them and comes back at once."""
    workers, stop = plan.base.training.workers[1], StopAll()
    nodes = sum(node["Alive"] for node in ray.nodes())
    for name, value in _RAY_TUNE.items():
        os.environ.setdefault(name, value)
    with listening(conductor.hear) as listener, TemporaryDirectory(prefix="raytriever-") as state:
        around = Circumstances(
            listener.mailbox,
            os.getcwd(),
            math.ceil(plan.at_once / nodes),
            _watched(plan.base, search),
            plan.metric != DEV_LOSS,
        )
        proposals = Proposals(conductor.next_job, conductor.ended)
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
        failure = _fit(tuner, listener.broken, conductor, stop)
    if failure := failure or proposals.failure:
        raise failure


def _bundle(workers: int) -> dict[str, float]:
    """What a trial's own process takes: all it trains on, or of several workers, who take it themselves, nothing."""
    if workers > 1:
        return {"node:__internal_head__": 0.001}
    return {"CPU": 1.0, "GPU": 1.0} if gpus() else {"CPU": 1.0}


def _scheduler(conductor: Conductor, search: SearchConfig, watched: str) -> Asha:
    def curve_of(number: int) -> list[tuple[int, float]]:
        return curve(conductor.folder_of(number), watched)

    over = [trial.number for trial in conductor.trials if trial.status in (FINISHED, STOPPED)]
    earlier = [curve_of(number) for number in over]
    return Asha(watched, watched != DEV_LOSS, search.asha_grace, search.asha_factor, earlier, curve_of)


def _fit(tuner: tune.Tuner, broken: threading.Event, conductor: Conductor, stop: StopAll) -> BaseException | None:
    """Run Tune on a thread of its own, for the reason of `train._fit`; answers what it failed with."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            tuner.fit()
        except Exception as failure:  # handed to the caller's thread
            failures.append(failure)

    thread = threading.Thread(target=run, name="raytriever-tune", daemon=True)
    thread.start()
    try:
        while thread.is_alive() and not broken.is_set():
            thread.join(0.2)
    finally:
        conductor.leave()
        stop.tell()
        thread.join(STOP_SECONDS)
        if thread.is_alive():  # asked of a session that is over, Ray would start one
            ray._private.auto_init_hook.enable_auto_connect = False
    return failures[0] if failures else None
