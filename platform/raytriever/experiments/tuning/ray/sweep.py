"""Run a sweep: many trials under Ray Tune, evaluation of the best trial on the test split, logs and plots.

1. Check the space, every trial of a grid, the directory, data sets and models before anything is written.
2. Prepare the data that all trials share (`shared_training_data`). Tune runs the trials (`ray_tuner`, `run_trial`).
   Each trial is an ordinary run in its own directory, and only the driver records it (`trial_manager`).
3. Evaluate the trial with the best dev metric, the untrained encoder and BM25, as at the end of a run.

An interrupted sweep resumes when called again. Finished and stopped trials are kept, running trials resume from their
newest checkpoints, and failed trials are repeated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from raytriever.cluster.gpus_and_placement import count_slots, gpus_each
from raytriever.cluster.ray_session import check_cluster, ray_session
from raytriever.cluster.train.validate_checkpoint import DEV, dev_protocol
from raytriever.core.errors import ConfigError, UserError, setting
from raytriever.core.machine import usable_cores
from raytriever.core.progress import activity
from raytriever.core.store.commit import MANIFEST, committed_directory, remove, write_atomically
from raytriever.core.terminal import markdown_table
from raytriever.core.unknown_names import check_known, did_you_mean
from raytriever.evaluation.protocol import Protocol, metric_title
from raytriever.evaluation.results import Results
from raytriever.experiments.report.figures import HEIGHT, WIDTH, label, lines, picture, plain_log_ticks
from raytriever.experiments.run.open_run import open_run
from raytriever.experiments.run.run_directory import METRICS, RunDirectory
from raytriever.experiments.run.whole_run import closing_evaluation, conclude, finished_results
from raytriever.experiments.tuning.ray.ray_tuner import run_trials
from raytriever.experiments.tuning.ray.shared_training_data import SweepData, trial_config
from raytriever.experiments.tuning.ray.trial_manager import SweepPlan, TrialManager, settings_text, trial_run_name
from raytriever.experiments.tuning.samplers import GRID, Sampler
from raytriever.experiments.tuning.space import (
    BATCH_AUC,
    DEFAULT_TRIALS,
    SearchConfig,
    SearchSpace,
    parse_search_space,
    short_name,
)
from raytriever.experiments.tuning.trial_log import (
    FAILED,
    FINISHED,
    STOPPED,
    TRIAL_LOG,
    Trial,
    find_best,
    read_trials,
    setting_text,
    sweep_rows,
)
from raytriever.tracking.spool import Spool, send_pending
from raytriever.tracking.tracker import COMMAND, Tracker, closing
from raytriever.tracking.tracker_names import DEFAULT_TRACKERS, check_trackers, open_trackers
from raytriever.training.run_config import Config, dump_config, hash_of, to_dict
from raytriever.training.training_settings import DEV_LOSS

COORDINATORS = 2  # logical CPUs that `ray_session` adds to those of the workers
# Settings that do not affect results, and so may differ when a sweep is resumed.
_MAY_CHANGE = ("trials", "trials_at_once", "trial_gpus")
SWEEP = "sweep"
BEST_TRIAL = "raytriever.best_trial"  # tag of a sweep's run: the name of its best trial
BEST, MODEL, TABLE, FIGURES = "best", "model", "table.md", "figures"
LOSS = "loss.loss"


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep."""

    path: Path
    trials: list[Trial]
    metric: str
    best: Trial | None  # the best trial; None if no trial finished
    results: Results | None  # results of the best trial on the test split; None if no trial finished
    is_new: bool  # False if an earlier call had already finished the sweep

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
    """Run all trials of a sweep, and evaluate the best trial on the test split. A failed trial raises no error. `base`
    are the settings of all trials, except for the searched settings."""
    started = time.monotonic()
    space, plan = plan_sweep(base, search)
    # All settings that decide the trials of a sweep, by section.
    deciding = {name: value for name, value in asdict(search).items() if name not in _MAY_CHANGE}
    settings = {**to_dict(base), SWEEP: {**deciding, "search_space": space.to_dict()}}
    run = RunDirectory.open(output, settings, fresh)
    if run.state != "new" and not (output / TRIAL_LOG).is_file() and (output / METRICS).is_file():
        raise ConfigError("holds a training run, not a sweep", setting("output", output), "give another directory")
    trials = [] if run.state == "new" else read_trials(output, [dimension.key for dimension in space.dimensions])
    if finished := _finished_sweep(output, plan, trials):
        send_pending(output, trackers, log)
        return finished

    check_trackers(trackers)
    check_cluster()
    data = SweepData(log)
    data.prepare(base, space)
    clients = open_trackers(trackers)
    remove(output / TABLE)  # a sweep without this table has not ended
    run.begin(yaml.safe_dump({"hash": hash_of(settings), **settings}, sort_keys=False, allow_unicode=True))
    tracker = Spool.open(clients, output, run_name)
    with closing(tracker):
        tags = {COMMAND: "tune", "run_directory": str(output.resolve())}
        searched = {dimension.key for dimension in space.dimensions}
        constant = {
            section: {name: value for name, value in values.items() if f"{section}.{name}" not in searched}
            for section, values in settings.items()
        }
        tracker.describe(constant, data.record(), tags)
        workers, at_once = base.training.workers[1], search.trials_at_once
        with ray_session(workers * (at_once or max(1, usable_cores() // workers)) - COORDINATORS):
            plan = replace(plan, at_once=at_once or count_slots(workers, gpus_each("trial_gpus", search.trial_gpus)))
            manager = TrialManager(output, plan, data, trials, tracker, run_name, log)
            try:
                if manager.remaining:
                    run_trials(manager, plan, search, data)
            finally:
                manager.close()
        best, results = find_best(manager.trials, plan.metric), None
        if best is not None:
            folder, config = manager.folder_of(best.number), trial_config(base, dict(best.settings))
            results = evaluate_best(output, best, config, folder, tracker, run_name, log, started)
        write_sweep(output, manager.trials, space, plan.metric, tracker)
    return SweepResult(output, manager.trials, plan.metric, best, results, is_new=True)


def _finished_sweep(output: Path, plan: SweepPlan, trials: Sequence[Trial]) -> SweepResult | None:
    """Return the result of a sweep whose trials and evaluation have ended; None for any other sweep."""
    best = find_best(trials, plan.metric)
    has_ended = len(trials) >= plan.trials and all(trial.status in (FINISHED, STOPPED) for trial in trials)
    if best is None or not has_ended or not (output / TABLE).is_file():
        return None
    results = finished_results(open_best(output, trial_config(plan.base, dict(best.settings))))
    return SweepResult(output, list(trials), plan.metric, best, results, is_new=False) if results else None


def plan_sweep(base: Config, search: SearchConfig) -> tuple[SearchSpace, SweepPlan]:
    """Return the search space and the plan, after checking every trial of a grid. The settings are already checked."""
    if search.trial_gpus is not None and base.training.workers[1] > 1:
        what = "applies only to trials with one worker"
        raise ConfigError(what, setting("trial_gpus"), "omit it: if a trial has several workers, each has its own GPU")
    space = parse_search_space(search.search_space)
    metrics = (*Protocol().metrics, DEV_LOSS)
    check_known("metric", search.metric, metrics, setting("metric"))
    scales = [dimension.key for dimension in space.dimensions if dimension.section == "loss"]
    for name, metric in (("metric", search.metric), ("asha_metric", search.asha_metric if search.asha else "")):
        if metric == DEV_LOSS and scales:
            remedy = f"give another metric, such as {BATCH_AUC if name == 'asha_metric' else 'ndcg_at_10'}"
            what = f"{DEV_LOSS} has a different scale in each trial, because {scales[0]} is searched"
            raise ConfigError(what, setting(name), remedy)
    check_watched_metric(base, search)
    sampler = Sampler(search.searcher, space, base.training.seed)
    trials = search.trials or DEFAULT_TRIALS
    if not any(dimension.is_range for dimension in space.dimensions):
        trials = min(trials, len(space.grid()))
    if search.searcher == GRID:
        points = space.grid()
        trials = min(search.trials or len(points), len(points))
        for number, point in enumerate(points[:trials]):
            try:
                trial_config(base, point)
            except UserError as error:
                raise error.within(f"trial {number} ({settings_text(point)})") from error
    return space, SweepPlan(base=base, sampler=sampler, trials=trials, metric=search.metric, at_once=1)


def check_watched_metric(base: Config, search: SearchConfig) -> None:
    """Raise `ConfigError` if the metric for stopping trials early is unknown, or not evaluated during training."""
    if not search.asha or search.asha_metric in (BATCH_AUC, DEV_LOSS):
        return
    metrics = dev_protocol(base.training.best_metric).metrics
    if search.asha_metric not in metrics:
        remedy = did_you_mean(search.asha_metric, (*metrics, BATCH_AUC, DEV_LOSS))
        raise ConfigError(f"unknown metric {search.asha_metric!r}", setting("asha_metric"), remedy)
    if not base.validation.sources(base.training.best_metric, base.data.dev_split):
        remedy = f"give {setting('eval_datasets')} own, or {setting('asha_metric')} {BATCH_AUC}"
        raise ConfigError(f"{search.asha_metric} is not evaluated during training", setting("asha_metric"), remedy)


def open_best(output: Path, config: Config) -> RunDirectory:
    """Return the run directory for the best trial, with these settings. A directory of another trial is replaced."""
    try:
        return RunDirectory.open(output / BEST, to_dict(config), fresh=False)
    except ConfigError:  # the directory belongs to an earlier best trial
        return RunDirectory.open(output / BEST, to_dict(config), fresh=True)


def evaluate_best(
    output: Path,
    best: Trial,
    config: Config,
    folder: Path,
    tracker: Spool,
    run_name: str,
    log: Callable[[str], None],
    started: float,
) -> Results:
    """Evaluate the best trial as at the end of a run. Write `best.yaml`, and `best/` unless it already has the trial.

    `tracker` belongs to the sweep. Metrics are logged to the trial's run. A tag of the sweep's run names the trial."""
    write_atomically(output / f"{BEST}.yaml", dump_config(config))
    run = open_best(output, config)
    if results := finished_results(run):
        return results
    opened = open_run(config, lambda line: None)
    run.begin(dump_config(config))
    with committed_directory(run.path / MODEL, {"config": config.hash}, replace=True) as target:
        shutil.copytree(folder / MODEL, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    log(f"trial {best.name} is the best")
    child = tracker.child(trial_run_name(best, run_name), folder)
    evaluation = closing_evaluation(opened, run.path / MODEL, log)
    results = conclude(run, config, evaluation, [folder], child, log, started)
    child.finish("FINISHED")
    tracker.describe({}, None, {BEST_TRIAL: trial_run_name(best, run_name)})
    return results


@activity("plotting the figures of the sweep")
def write_sweep(output: Path, trials: Sequence[Trial], space: SearchSpace, metric: str, tracker: Tracker) -> None:
    """Write `figures/response-NAME` for each numeric setting. Write `table.md` last, because it marks the end."""
    if not trials:
        return
    figures = output / FIGURES
    on_batches = {DEV_LOSS: "dev loss", BATCH_AUC: "dev batch AUC"}  # these are evaluated on dev batches
    title = on_batches.get(metric) or metric_title(metric.removeprefix(DEV))
    keys = [dimension.key for dimension in space.dimensions]
    by = LOSS if LOSS in keys else None
    for dimension in space.dimensions:
        if dimension.key != LOSS and all(type(trial.settings[dimension.key]) in (int, float) for trial in trials):
            path = figures / f"response-{short_name(dimension.key)}.png"
            save_response(path, trials, metric, title, dimension.key, by, dimension.log)
    write_atomically(output / TABLE, markdown_table(sweep_rows(trials, metric)))
    for name in (TRIAL_LOG, TABLE, FIGURES, "best.yaml"):
        if (output / name).exists():
            tracker.log_file(output / name)


def save_response(
    path: Path, trials: Sequence[Trial], metric: str, title: str, key: str, by: str | None, log: bool
) -> None:
    """Plot the metric over one dimension, with a point for each trial and a line through the means.

    Args:
        key: dimension whose values are numbers.
        by: dimension with a line for each value, such as the loss; None for one line.
    """
    finished = [t for t in trials if t.value(metric) is not None and isinstance(t.settings[key], int | float)]
    if not finished:
        return
    groups = list(dict.fromkeys(t.settings[by] for t in finished)) if by else [None]
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for group, (color, dash) in zip(groups, lines(), strict=False):
            own = [t for t in finished if by is None or t.settings[by] == group]
            x, y = np.array([float(t.settings[key]) for t in own]), np.array([t.metrics[metric] for t in own])
            axes.plot(x, y, "o", color=color, alpha=0.45, markersize=4)
            values = np.unique(x)
            means = [y[x == value].mean() for value in values]
            axes.plot(values, means, color=color, linestyle=dash, label=label(setting_text(group)) if by else None)
        if log:
            axes.set_xscale("log")
            plain_log_ticks(axes.xaxis)
        ticks = sorted({float(t.settings[key]) for t in finished})
        if len(ticks) <= 6:
            axes.set_xticks(ticks, [setting_text(tick) for tick in ticks])
            axes.set_xticks([], minor=True)
        axes.set(
            xlabel=short_name(key), ylabel=f"{title} on dev", title=f"{title} by {short_name(key)}, means and trials"
        )
        if by:
            axes.legend(loc="best")
