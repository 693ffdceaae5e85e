"""Plot of a sweep: the metric over one searched number. MLflow draws the parallel coordinates and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raytriever.experiments.report.figures import HEIGHT, WIDTH, label, lines, picture, plain_log_ticks
from raytriever.experiments.tuning.space import short_name
from raytriever.experiments.tuning.trial_log import Trial, setting_text


def save_response(
    path: Path, trials: Sequence[Trial], metric: str, title: str, key: str, by: str | None, log: bool
) -> None:
    """Draw the metric over the numbers of one dimension, `key`: a point for each trial, and a line through the means
    for each value of the dimension `by`, such as the loss; None for one line."""
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
