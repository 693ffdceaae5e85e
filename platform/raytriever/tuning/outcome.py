"""Results of a sweep: evaluation of the best trial on the test split, `table.md` and figures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from raytriever.activity import activity
from raytriever.cluster.train.dev_sets import DEV
from raytriever.config import TRIALS, Config, Curriculum, dump_config, to_dict
from raytriever.encoding.loading import load_for_encoding
from raytriever.errors import ConfigError
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.systems import evaluate_bm25, evaluate_retriever
from raytriever.experiment.conclusion import conclude
from raytriever.experiment.directory import RunDirectory
from raytriever.experiment.opening import open_run
from raytriever.mining.bm25 import Bm25Index
from raytriever.models.config import ModelConfig
from raytriever.storage import MANIFEST, committed_directory, write_atomically
from raytriever.terminal import markdown_table
from raytriever.tracking.steps import read_curve
from raytriever.tracking.tracker import PersistentTracker, Point, Tracker
from raytriever.tuning.figures import save_parallel, save_response, save_trial_curves
from raytriever.tuning.space import BATCH_AUC, SearchSpace, short_name
from raytriever.tuning.trial_log import DEV_LOSS, TRIAL_LOG, Trial, sweep_rows

BEST, MODEL = "best", "model"
SYSTEMS = ("bm25", "before", "after")
Rows = dict[str, dict[str, float]]


def read_best(output: Path, config: Config) -> Rows | None:
    """What an earlier call found of a trial with these settings; None where it measured none, or another."""
    try:
        run = RunDirectory.open(output / BEST, to_dict(config), fresh=False)
    except ConfigError:  # of the trial that was best then
        return None
    if run.state != "finished":
        return None
    figures = run.metrics()
    return {"bm25": figures["bm25"], "before": figures["before"], "after": figures["after"]}


def evaluate_best(
    output: Path,
    best: Trial,
    config: Config,
    folder: Path,
    tracker: PersistentTracker,
    run_name: str,
    say: Callable[[str], None],
    began: float,
) -> Rows:
    """Make `best/` and `best.yaml` of the sweep's directory, where they are not of this trial already.

    Args:
        output: the sweep's directory.
        best: the trial.
        config: its settings.
        folder: its run directory.
        tracker: of the sweep; the figures go to the run of the trial, and to this one.
        run_name: of the sweep.
        say: hears a line at every turn.
        began: `time.monotonic()` when the command began.

    Raises:
        UserError: something a user can mend.
    """
    write_atomically(output / f"{BEST}.yaml", dump_config(config))
    if rows := read_best(output, config):
        return rows
    curriculum = Curriculum(config)
    opened, retriever = open_run(curriculum, lambda line: None)
    dataset, split = opened.dataset, config.data.test_split
    run = RunDirectory.open(output / BEST, to_dict(config), fresh=True)
    run.begin(dump_config(config))
    with committed_directory(run.path / MODEL, {"config": config.hash}, replace=True) as aside:
        shutil.copytree(folder / MODEL, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
    say(f"trial {best.name} is the best; the test split: BM25, {config.model.model} before, the trial's model after")
    found = {"bm25": evaluate_bm25(dataset, split, Bm25Index(dataset.passages()))}
    found["before"] = evaluate_retriever(dataset, split, config.model, retriever)
    own = ModelConfig(model=str(run.path / MODEL))
    found["after"] = evaluate_retriever(dataset, split, own, load_for_encoding(own, opened.precision, opened.device))
    child = tracker.child(f"{run_name}/{best.name}", folder)
    conclude(run, opened, [folder], found, child, began)
    child.finish("FINISHED")
    rows = {name: evaluation.metrics for name, evaluation in found.items()}
    now = time.time_ns() // 1_000_000
    tracker.log(
        [
            Point(f"best/{system}/{name}", value, best.number, now)
            for system, values in rows.items()
            for name, value in values.items()
        ]
    )
    return rows


TABLE, FIGURES, LOSS = "table.md", "figures", "loss.loss"


@activity("drawing the figures of the sweep")
def write_sweep(
    output: Path, trials: Sequence[Trial], space: SearchSpace, metric: str, watched: str | None, tracker: Tracker
) -> None:
    """Write `table.md`, `figures/parallel`, `figures/response-NAME` of each number, and `figures/curves`.

    Args:
        output: the sweep's directory.
        trials: at least one.
        space: what was searched.
        metric: what decides.
        watched: what trials were stopped by; None where none was.
        tracker: of the sweep.

    Raises:
        StorageError: the disk is full or forbidden.
    """
    if not trials:
        return
    figures, title = output / FIGURES, metric_label(metric)
    write_atomically(output / TABLE, markdown_table(sweep_rows(trials, metric, short_name)))
    save_parallel(figures / "parallel.png", trials, metric, title, short_name)
    keys = [one.key for one in space.dimensions]
    by = LOSS if LOSS in keys else None
    for one in space.dimensions:
        if one.key != LOSS and all(_is_number(trial.settings[one.key]) for trial in trials):
            path = figures / f"response-{short_name(one.key)}.png"
            save_response(path, trials, metric, title, one.key, by, short_name, one.log)
    if watched is not None:
        curves = {trial.number: read_curve(output / TRIALS / trial.name, watched) for trial in trials}
        save_trial_curves(figures / "curves.png", trials, curves, metric_label(watched))
    for name in (TRIAL_LOG, TABLE, FIGURES, "best.yaml"):
        if (output / name).exists():
            tracker.log_file(output / name)


def metric_label(name: str) -> str:
    """A metric in print; what is told of looks is not all among what rankings are measured by."""
    if name in (DEV_LOSS, BATCH_AUC):
        return name.replace("_", " ").replace("auc", "AUC")
    return metric_title(name.removeprefix(DEV))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
