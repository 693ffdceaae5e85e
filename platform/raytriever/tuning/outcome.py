"""Results of a sweep: evaluation of the best trial on the test split, `table.md` and figures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from raytriever.activity import activity
from raytriever.cluster.evaluation import evaluate_model
from raytriever.cluster.train.dev_sets import DEV
from raytriever.config import TRIALS, Config, Curriculum, dump_config, to_dict
from raytriever.errors import ConfigError
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.systems import Bm25System
from raytriever.experiment.conclusion import conclude
from raytriever.experiment.directory import RunDirectory
from raytriever.experiment.opening import open_run
from raytriever.models.config import ModelConfig
from raytriever.store.commit import MANIFEST, committed_directory, write_atomically
from raytriever.terminal import markdown_table
from raytriever.tracking.steps import read_curve
from raytriever.tracking.tracker import PersistentTracker, Point, Tracker
from raytriever.training.config import DEV_LOSS
from raytriever.tuning.figures import save_parallel, save_response, save_trial_curves
from raytriever.tuning.space import BATCH_AUC, SearchSpace, short_name
from raytriever.tuning.trial_log import TRIAL_LOG, Trial, sweep_rows

BEST, MODEL, TABLE, FIGURES = "best", "model", "table.md", "figures"
LOSS = "loss.loss"
Rows = dict[str, dict[str, float]]  # metrics by system


def read_best(output: Path, config: Config) -> Rows | None:
    """Return the test metrics that an earlier call measured for a trial with these settings; None without any."""
    try:
        run = RunDirectory.open(output / BEST, to_dict(config), fresh=False)
    except ConfigError:  # it belongs to the trial that was the best then
        return None
    if run.state != "finished":
        return None
    metrics = run.metrics()
    return {"bm25": metrics["bm25"], "before": metrics["before"], "after": metrics["after"]}


def evaluate_best(
    output: Path,
    best: Trial,
    config: Config,
    folder: Path,
    tracker: PersistentTracker,
    run_name: str,
    log: Callable[[str], None],
    started: float,
) -> Rows:
    """Evaluate the best trial on the test split, and write `best/` and `best.yaml`, unless they are its own already.

    Args:
        output: the sweep's directory.
        best: the trial.
        config: its settings.
        folder: its run directory.
        tracker: Tracker of the sweep; the metrics are logged to the run of the trial and to this one.
        run_name: Name of the sweep.
        log: called with a line about the progress.
        started: `time.monotonic()` at the start of the command.

    Returns:
        The metrics on the test split by system: `bm25`, `before` and `after` training.

    Raises:
        UserError: a data set or the model is not usable, or the disk is full.
    """
    write_atomically(output / f"{BEST}.yaml", dump_config(config))
    if rows := read_best(output, config):
        return rows
    curriculum = Curriculum(config)
    opened, retriever = open_run(curriculum, lambda line: None)
    dataset, split = opened.dataset, config.data.test_split
    run = RunDirectory.open(output / BEST, to_dict(config), fresh=True)
    run.begin(dump_config(config))
    with committed_directory(run.path / MODEL, {"config": config.hash}, replace=True) as target:
        shutil.copytree(folder / MODEL, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    log(f"trial {best.name} is the best; evaluating BM25, {config.model.model} and the trial's model on the test split")
    evaluations = {"bm25": Bm25System(dataset).evaluate(split)}
    precision = config.training.precision
    evaluations["before"] = evaluate_model(dataset, split, config.model, precision, retriever)
    trained = ModelConfig(model=str(run.path / MODEL))
    evaluations["after"] = evaluate_model(dataset, split, trained, precision)
    child = tracker.child(f"{run_name}/{best.name}", folder)
    conclude(run, opened, [folder], evaluations, child, started)
    child.finish("FINISHED")
    rows = {name: evaluation.metrics for name, evaluation in evaluations.items()}
    now = time.time_ns() // 1_000_000
    tracker.log(
        [
            Point(f"best/{system}/{name}", value, best.number, now)
            for system, values in rows.items()
            for name, value in values.items()
        ]
    )
    return rows


@activity("drawing the figures of the sweep")
def write_sweep(
    output: Path, trials: Sequence[Trial], space: SearchSpace, metric: str, watched: str | None, tracker: Tracker
) -> None:
    """Write `table.md`, `figures/parallel`, `figures/response-NAME` of each number, and `figures/curves`.

    Args:
        output: the sweep's directory.
        trials: at least one.
        space: search space of the sweep.
        metric: the deciding metric.
        watched: metric that trials were stopped by; None without early stopping.
        tracker: Tracker of the sweep.

    Raises:
        StorageError: the disk is full or not writable.
    """
    if not trials:
        return
    figures, title = output / FIGURES, metric_label(metric)
    write_atomically(output / TABLE, markdown_table(sweep_rows(trials, metric)))
    save_parallel(figures / "parallel.png", trials, metric, title)
    keys = [one.key for one in space.dimensions]
    by = LOSS if LOSS in keys else None
    for one in space.dimensions:
        if one.key != LOSS and all(_is_number(trial.settings[one.key]) for trial in trials):
            path = figures / f"response-{short_name(one.key)}.png"
            save_response(path, trials, metric, title, one.key, by, one.log)
    if watched is not None:
        curves = {trial.number: read_curve(output / TRIALS / trial.name, watched) for trial in trials}
        save_trial_curves(figures / "curves.png", trials, curves, metric_label(watched))
    for name in (TRIAL_LOG, TABLE, FIGURES, "best.yaml"):
        if (output / name).exists():
            tracker.log_file(output / name)


def metric_label(name: str) -> str:
    """Return the title of a metric, also of the ones that are measured on dev batches."""
    if name in (DEV_LOSS, BATCH_AUC):
        return name.replace("_", " ").replace("auc", "AUC")
    return metric_title(name.removeprefix(DEV))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
