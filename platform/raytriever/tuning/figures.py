"""Figures of a sweep: parallel coordinates of all dimensions, the response to one dimension, curves of the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from raytriever.report.figures import HEIGHT, WIDTH, label, lines, picture, plain_log_ticks
from raytriever.tuning.space import short_name
from raytriever.tuning.trial_log import STOPPED, Trial, setting_text

COLOUR_MAP = "viridis"
LABEL_BOX = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
SPREAD = 0.07  # of an axis, over which trials of the same value are spread


def save_parallel(path: Path, trials: Sequence[Trial], metric: str, title: str) -> None:
    """Draw parallel coordinates: an axis for each dimension and the metric, a line for each finished trial.

    The metric decides the colour. Lines through the same value are slightly apart, so that each can be followed.
    """
    finished = sorted((t for t in trials if t.value(metric) is not None), key=lambda t: t.metrics[metric])
    if not finished:
        return
    keys = list(finished[0].settings)
    axes_values = [[t.settings[key] for t in finished] for key in keys]
    metrics = [t.metrics[metric] for t in finished]
    low, high = min(metrics), max(metrics)
    scale = Normalize(low, high if high > low else low + 1e-9)
    columns = [*(_heights(values) for values in axes_values), np.array([_fraction(f, low, high) for f in metrics])]
    with picture(path, max(WIDTH, 1.35 * (len(keys) + 1) + 0.8), HEIGHT) as figure:
        axes = figure.add_subplot()
        for row in range(len(finished)):
            axes.plot(
                range(len(columns)),
                [column[row] for column in columns],
                color=colormaps[COLOUR_MAP](scale(metrics[row])),
                marker="o",
                markersize=3,
                linewidth=2.4 if row == len(finished) - 1 else 1.2,
            )
        for index, values in enumerate(axes_values):
            axes.axvline(index, color="0.75", linewidth=1, zorder=0)
            for text, height in _ticks(values):
                axes.annotate(
                    text, (index, height), (7, 0), "data", "offset points", fontsize=9, va="center", bbox=LABEL_BOX
                )
        axes.axvline(len(keys), color="0.75", linewidth=1, zorder=0)
        axes.set_xticks(range(len(columns)), [*map(short_name, keys), title])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set(ylim=(-0.08, 1.08), xlim=(-0.1, len(columns) - 0.9), title=f"{len(finished)} trials, {title} on dev")
        figure.colorbar(ScalarMappable(scale, COLOUR_MAP), ax=axes, pad=0.02)


def save_response(
    path: Path, trials: Sequence[Trial], metric: str, title: str, key: str, by: str | None, log: bool
) -> None:
    """Draw the metric over one dimension: a point for each trial, and a line through the means.

    Args:
        key: dimension whose values are numbers.
        by: dimension with a line for each value, such as the loss; None for one line.
        log: whether the axis is logarithmic.
    """
    finished = [t for t in trials if t.value(metric) is not None and isinstance(t.settings[key], int | float)]
    if not finished:
        return
    groups = list(dict.fromkeys(t.settings[by] for t in finished)) if by else [None]
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for group, (colour, dash) in zip(groups, lines(), strict=False):
            own = [t for t in finished if by is None or t.settings[by] == group]
            x, y = np.array([float(t.settings[key]) for t in own]), np.array([t.metrics[metric] for t in own])
            axes.plot(x, y, "o", color=colour, alpha=0.45, markersize=4)
            values = np.unique(x)
            means = [y[x == value].mean() for value in values]
            axes.plot(values, means, color=colour, linestyle=dash, label=label(setting_text(group)) if by else None)
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


def save_trial_curves(
    path: Path, trials: Sequence[Trial], curves: Mapping[int, Sequence[tuple[int, float]]], title: str
) -> None:
    """Draw the curve of each trial that has points. That of a stopped trial is grey and ends with a cross."""
    with_curves = [t for t in trials if curves.get(t.number)]
    if not with_curves:
        return
    style = lines()
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        has_label = False
        for trial in with_curves:
            steps, values = zip(*curves[trial.number], strict=True)
            if trial.status == STOPPED:
                axes.plot(steps, values, color="0.7", linewidth=1, label=None if has_label else " stopped")
                axes.plot(steps[-1:], values[-1:], "x", color="0.5", markersize=5)
                has_label = True
            else:
                colour, dash = next(style)
                name = label(trial.name) if len(with_curves) <= 10 else None
                axes.plot(steps, values, color=colour, linestyle=dash, label=name)
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="step", ylabel=title, title=f"{title} of each trial")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", ncols=2)


def _heights(values: Sequence[Any]) -> np.ndarray:
    """Return the height of each trial on its axis, 0 to 1; equal values are slightly apart."""
    heights = np.array([_height(value, values) for value in values])
    for height in np.unique(heights):
        same = np.flatnonzero(heights == height)
        if len(same) > 1:
            heights[same] += np.linspace(-SPREAD / 2, SPREAD / 2, len(same))
    return heights


def _height(value: Any, values: Sequence[Any]) -> float:
    distinct = _distinct(values)
    if len(distinct) == 1:
        return 0.5
    if _is_categorical(distinct):
        return distinct.index(value) / (len(distinct) - 1)
    return _fraction(float(value), float(distinct[0]), float(distinct[-1]))


def _ticks(values: Sequence[Any]) -> list[tuple[str, float]]:
    distinct = _distinct(values)
    tick_values = distinct if _is_categorical(distinct) else [distinct[0], distinct[-1]]
    return [(label(setting_text(value), 18), _height(value, values)) for value in tick_values]


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values: numbers sorted, others in order of appearance."""
    distinct = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    return sorted(distinct) if numbers else distinct


def _is_categorical(distinct: Sequence[Any]) -> bool:
    """Return whether values have equal distances and a label each: words, and at most five numbers."""
    return len(distinct) <= 5 or not all(isinstance(value, int | float) for value in distinct)


def _fraction(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
