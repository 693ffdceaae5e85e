"""The trials of a sweep as a table, the best first: in plain text, and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raytriever.retrieval.file_names import unique_names
from raytriever.retrieval.metric_words import metric_title
from raytriever.retrieval.sweep import DEV_LOSS, FINISHED, Trial
from raytriever.retrieval.table import markdown_cell

# What is shown of a trial beside the metric that decides.
SHOWN = ("ndcg_at_10", "mrr_at_10", "recall_at_100", "auc", DEV_LOSS)


def ranked(trials: Sequence[Trial], metric: str) -> list[Trial]:
    """Finished trials by what they came to, the best first; then the others by number."""
    return sorted(
        trials, key=lambda t: (0, -value, t.number) if (value := t.value(metric)) is not None else (1, 0.0, t.number)
    )


def sweep_rows(trials: Sequence[Trial], metric: str, names: Callable[[str], str]) -> list[list[str]]:
    """A line of titles and a line a trial.

    Args:
        trials: at least one.
        metric: what decides; it stands first of the metrics.
        names: what a dimension is called in print.
    """
    keys = list(trials[0].settings)
    found = {name for trial in trials for name in trial.metrics}
    metrics = [metric, *(name for name in SHOWN if name in found and name != metric)]
    titles = [DEV_LOSS.replace("_", " ") if name == DEV_LOSS else metric_title(name) for name in metrics]
    rows = [unique_names(["trial", *(names(key) for key in keys), *titles, "steps", "seconds", "status"])]
    for trial in ranked(trials, metric):
        values = [_figure(trial.metrics[name]) if name in trial.metrics else "-" for name in metrics]
        status = trial.status if trial.status == FINISHED else f"{trial.status}: {trial.reason}".removesuffix(": ")
        settings = [setting_text(trial.settings[key]) for key in keys]
        rows.append([trial.name, *settings, *values, str(trial.steps), f"{trial.seconds:.1f}", status])
    return rows


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The same for a page."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(markdown_cell, cells)) + " |"

    return "\n".join([line(rows[0]), "|" + " --- |" * len(rows[0]), *(line(row) for row in rows[1:])]) + "\n"


def setting_text(value: Any) -> str:
    """A setting's value in print, four digits of a number."""
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None or value == "" else str(value)


def _figure(value: float) -> str:
    return f"{value:.4f}"
