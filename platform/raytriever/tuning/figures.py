"""Pictures of a sweep: all its dimensions side by side, the answer to one of them, and the curves of its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from raytriever.report.figures import HEIGHT, WIDTH, label, lines, picture, plain_log_ticks
from raytriever.tuning.trial_log import STOPPED, Trial, setting_text

Names = Callable[[str], str]
MAP = "viridis"
BEHIND = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
APART = 0.07  # of an axis: how far trials of the same value are drawn from each other


def save_parallel(path: Path, trials: Sequence[Trial], metric: str, title: str, names: Names) -> None:
    """An upright axis a dimension and one for the metric, a line a finished trial, coloured by the metric.

    Lines through the same value are drawn a little apart, so that each can be followed.

    Args:
        path: of the PNG; the SVG stands beside it.
        trials: of one sweep.
        metric: what decides.
        title: of the metric, in print.
        names: what a dimension is called in print.
    """
    done = sorted((t for t in trials if t.value(metric) is not None), key=lambda t: t.metrics[metric])
    if not done:
        return
    keys = list(done[0].settings)
    axes_values = [[t.settings[key] for t in done] for key in keys]
    figures = [t.metrics[metric] for t in done]
    low, high = min(figures), max(figures)
    scale = Normalize(low, high if high > low else low + 1e-9)
    columns = [*(_heights(values) for values in axes_values), np.array([_share(f, low, high) for f in figures])]
    with picture(path, max(WIDTH, 1.35 * (len(keys) + 1) + 0.8), HEIGHT) as figure:
        axes = figure.add_subplot()
        for row in range(len(done)):
            axes.plot(
                range(len(columns)),
                [column[row] for column in columns],
                color=colormaps[MAP](scale(figures[row])),
                marker="o",
                markersize=3,
                linewidth=2.4 if row == len(done) - 1 else 1.2,
            )
        for place, values in enumerate(axes_values):
            axes.axvline(place, color="0.75", linewidth=1, zorder=0)
            for text, height in _ticks(values):
                axes.annotate(
                    text, (place, height), (7, 0), "data", "offset points", fontsize=9, va="center", bbox=BEHIND
                )
        axes.axvline(len(keys), color="0.75", linewidth=1, zorder=0)
        axes.set_xticks(range(len(columns)), [*(names(key) for key in keys), title])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set(ylim=(-0.08, 1.08), xlim=(-0.1, len(columns) - 0.9), title=f"{len(done)} trials, {title} on dev")
        figure.colorbar(ScalarMappable(scale, MAP), ax=axes, pad=0.02)


def save_response(
    path: Path, trials: Sequence[Trial], metric: str, title: str, key: str, by: str | None, names: Names, log: bool
) -> None:
    """How the metric answers to one number: a point a trial, and a line through the means.

    Args:
        path, trials, metric, title, names: see `save_parallel`.
        key: of the dimension, whose values are numbers.
        by: a dimension whose values have a line each, such as the loss; one line when None.
        log: whether the numbers are shown by their logarithm.
    """
    done = [t for t in trials if t.value(metric) is not None and isinstance(t.settings[key], int | float)]
    if not done:
        return
    groups = list(dict.fromkeys(t.settings[by] for t in done)) if by else [None]
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for group, (colour, dash) in zip(groups, lines(), strict=False):
            own = [t for t in done if by is None or t.settings[by] == group]
            x, y = np.array([float(t.settings[key]) for t in own]), np.array([t.metrics[metric] for t in own])
            axes.plot(x, y, "o", color=colour, alpha=0.45, markersize=4)
            places = np.unique(x)
            means = [y[x == place].mean() for place in places]
            axes.plot(places, means, color=colour, linestyle=dash, label=label(setting_text(group)) if by else None)
        if log:
            axes.set_xscale("log")
            plain_log_ticks(axes.xaxis)
        ticks = sorted({float(t.settings[key]) for t in done})
        if len(ticks) <= 6:
            axes.set_xticks(ticks, [setting_text(tick) for tick in ticks])
            axes.set_xticks([], minor=True)
        axes.set(xlabel=names(key), ylabel=f"{title} on dev", title=f"{title} by {names(key)}, means and trials")
        if by:
            axes.legend(loc="best")


def save_trial_curves(
    path: Path, trials: Sequence[Trial], curves: Mapping[int, Sequence[tuple[int, float]]], title: str
) -> None:
    """A figure by step, one curve a trial; that of a trial which was stopped is grey and ends in a cross.

    Args:
        path: of the PNG; the SVG stands beside it.
        trials: of one sweep.
        curves: by the trial's number; one without points is left out.
        title: of the figure.
    """
    drawn = [t for t in trials if curves.get(t.number)]
    if not drawn:
        return
    style = lines()
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        stopped = False
        for trial in drawn:
            steps, values = zip(*curves[trial.number], strict=True)
            if trial.status == STOPPED:
                axes.plot(steps, values, color="0.7", linewidth=1, label=None if stopped else " stopped")
                axes.plot(steps[-1:], values[-1:], "x", color="0.5", markersize=5)
                stopped = True
            else:
                colour, dash = next(style)
                name = label(trial.name) if len(drawn) <= 10 else None
                axes.plot(steps, values, color=colour, linestyle=dash, label=name)
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="step", ylabel=title, title=f"{title} of each trial")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", ncols=2)


def _heights(values: Sequence[Any]) -> np.ndarray:
    """Where on its axis each trial stands, equals a little apart."""
    at = np.array([_height(value, values) for value in values])
    for height in np.unique(at):
        same = np.flatnonzero(at == height)
        if len(same) > 1:
            at[same] += np.linspace(-APART / 2, APART / 2, len(same))
    return at


def _height(value: Any, values: Sequence[Any]) -> float:
    kinds = _kinds(values)
    if len(kinds) == 1:
        return 0.5
    if _listed(kinds):
        return kinds.index(value) / (len(kinds) - 1)
    return _share(float(value), float(kinds[0]), float(kinds[-1]))


def _ticks(values: Sequence[Any]) -> list[tuple[str, float]]:
    kinds = _kinds(values)
    shown = kinds if _listed(kinds) else [kinds[0], kinds[-1]]
    return [(label(setting_text(value), 18), _height(value, values)) for value in shown]


def _kinds(values: Sequence[Any]) -> list[Any]:
    """The values there are: numbers in their order, others as they came."""
    kinds = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in kinds)
    return sorted(kinds) if numbers else kinds


def _listed(kinds: Sequence[Any]) -> bool:
    """Whether values stand at even distances, each with its name: words, and numbers that are few."""
    return len(kinds) <= 5 or not all(isinstance(value, int | float) for value in kinds)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
