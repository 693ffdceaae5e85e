"""The best trial of a sweep on the test split: measured once, beside what there was before, as a finished run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from raytriever.cluster.conclusion import conclude
from raytriever.cluster.opening import open_run
from raytriever.config import Config, Curriculum, dump_config, to_dict
from raytriever.errors import ConfigError
from raytriever.models.config import ModelConfig
from raytriever.negatives.bm25 import Bm25Index
from raytriever.retrieval.loading import load_for_encoding
from raytriever.retrieval.sweep import Trial
from raytriever.retrieval.systems import evaluate_bm25, evaluate_retriever
from raytriever.storage import MANIFEST, committed_directory, write_atomically
from raytriever.tracking.tracker import LastingTracker, Point
from raytriever.training.run_directory import RunDirectory

BEST, MODEL = "best", "model"
SYSTEMS = ("bm25", "before", "after")
Rows = dict[str, dict[str, float]]


def measured_best(output: Path, config: Config) -> Rows | None:
    """What an earlier call found of a trial with these settings; None where it measured none, or another."""
    try:
        run = RunDirectory.open(output / BEST, to_dict(config), fresh=False)
    except ConfigError:  # of the trial that was best then
        return None
    if run.state != "finished":
        return None
    figures = run.metrics()
    return {"bm25": figures["bm25"], "before": figures["before"], "after": figures["after"]}


def measure_best(
    output: Path,
    best: Trial,
    config: Config,
    folder: Path,
    tracker: LastingTracker,
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
    if rows := measured_best(output, config):
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
