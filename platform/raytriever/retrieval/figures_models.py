"""Pictures of models: what each gains over a baseline on every data set, and curves by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.retrieval.figures_style import HEIGHT, WIDTH, label, lines, picture

Curve = Sequence[tuple[int, float]]
BAR = 0.16  # inches


def save_gains(path: Path, gains: Mapping[str, Mapping[str, float]], metric: str, baseline: str) -> None:
    """A bar a data set and model: how far it stands above (or below) the baseline in one metric.

    As Figure 4 of *Optimizing What Matters*, lying: names of data sets stay readable however many there are.

    Args:
        path: of the PNG; the SVG stands beside it.
        gains: by model and data set, in units of the metric; a data set a model has no value for has no bar.
        metric, baseline: their names.
    """
    datasets = list(dict.fromkeys(name for of_model in gains.values() for name in of_model))
    height = 1.2 + len(datasets) * (0.12 + BAR * len(gains)) + 0.18 * len(gains)
    with picture(path, WIDTH, height) as figure:
        axes = figure.add_subplot()
        thick = 0.8 / max(1, len(gains))
        places = np.arange(len(datasets))
        for number, ((model, of_model), (colour, _)) in enumerate(zip(gains.items(), lines(), strict=False)):
            values = [of_model.get(dataset, np.nan) for dataset in datasets]
            offset = (number - (len(gains) - 1) / 2) * thick
            axes.barh(places + offset, values, thick * 0.9, color=colour, label=label(model))
        axes.axvline(0, color="0.2", linewidth=1)
        axes.set_yticks(places, [label(dataset, 22) for dataset in datasets])
        axes.set_ylim(len(datasets) - 0.5, -0.5)  # the first on top
        axes.grid(False, axis="y")
        axes.margins(x=0.08)
        axes.locator_params(axis="x", nbins=5)
        axes.set(xlabel=f"{metric}, above or below {label(baseline)}", title=f"Gain in {metric}")
        if gains:
            figure.legend(loc="outside lower left")


def save_curves(path: Path, curves: Mapping[str, Curve], value: str) -> None:
    """A value by step, one curve a name; one without points is left out."""
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for (name, points), (colour, dash) in zip(curves.items(), lines(), strict=False):
            if points:
                steps, values = zip(*points, strict=True)
                marker = "o" if len(points) < 20 else ""
                axes.plot(steps, values, color=colour, linestyle=dash, marker=marker, markersize=3.5, label=label(name))
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="step", ylabel=value, title=value)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")


def save_thresholds(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """What each threshold was chosen for (a tick) and what it achieved where it was checked, with its interval.

    Args:
        path: of the PNG; the SVG stands beside it.
        rows: of `evaluation_calibration.calibration_rows`, one data set's, each with what was checked.
    """
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    wanted = list(dict.fromkeys((str(row["aim"]), float(row["wanted"])) for row in rows))
    height = 1.3 + len(wanted) * (0.15 + BAR * len(models)) + 0.18 * len(models)
    with picture(path, WIDTH, height) as figure:
        axes = figure.add_subplot()
        thick = 0.8 / len(models)
        for number, (model, (colour, _)) in enumerate(zip(models, lines(), strict=False)):
            own = [row for row in rows if row["model"] == model]
            offset = (number - (len(models) - 1) / 2) * thick
            rows_of = [wanted.index((row["aim"], row["wanted"])) + offset for row in own]
            values = np.array([row["checked"] for row in own])
            low, high = (np.array([row[name] for row in own]) for name in ("low", "high"))
            around = np.maximum(0.0, [values - low, high - values])
            axes.errorbar(
                values, rows_of, xerr=around, fmt="o", color=colour, markersize=4, capsize=2, label=label(model)
            )
        places = np.arange(len(wanted))
        axes.vlines([value for _, value in wanted], places - 0.45, places + 0.45, color="0.2", linewidth=1)
        axes.set_yticks(places, [f"{aim} {value:g}" for aim, value in wanted])
        axes.set_ylim(len(wanted) - 0.5, -0.5)  # the first on top
        axes.grid(False, axis="y")
        axes.margins(x=0.08)
        axes.set(xlabel="achieved on the split it was checked on", title="Thresholds (line: wanted)")
        figure.legend(loc="outside lower left")
