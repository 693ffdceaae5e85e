"""What a sweep leaves to read: `table.md` and figures, told to the tracker too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raytriever.activity import activity
from raytriever.cluster.validation_sets import DEV
from raytriever.config.search_config import BATCH_AUC, TRIALS
from raytriever.config.search_names import short_name
from raytriever.config.search_space import SearchSpace
from raytriever.retrieval.metric_words import metric_title
from raytriever.retrieval.sweep import BOOKS, DEV_LOSS, Trial
from raytriever.retrieval.sweep_figures import save_parallel, save_response, save_trial_curves
from raytriever.retrieval.sweep_table import markdown_table, sweep_rows
from raytriever.storage import write_atomically
from raytriever.tracking.steps import curve
from raytriever.tracking.tracker import Tracker

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
    figures, title = output / FIGURES, metric_words(metric)
    write_atomically(output / TABLE, markdown_table(sweep_rows(trials, metric, short_name)))
    save_parallel(figures / "parallel.png", trials, metric, title, short_name)
    keys = [one.key for one in space.dimensions]
    by = LOSS if LOSS in keys else None
    for one in space.dimensions:
        if one.key != LOSS and all(_is_number(trial.settings[one.key]) for trial in trials):
            path = figures / f"response-{short_name(one.key)}.png"
            save_response(path, trials, metric, title, one.key, by, short_name, one.log)
    if watched is not None:
        curves = {trial.number: curve(output / TRIALS / trial.name, watched) for trial in trials}
        save_trial_curves(figures / "curves.png", trials, curves, metric_words(watched))
    for name in (BOOKS, TABLE, FIGURES, "best.yaml"):
        if (output / name).exists():
            tracker.log_file(output / name)


def metric_words(name: str) -> str:
    """A metric in print; what is told of looks is not all among what rankings are measured by."""
    if name in (DEV_LOSS, BATCH_AUC):
        return name.replace("_", " ").replace("auc", "AUC")
    return metric_title(name.removeprefix(DEV))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
