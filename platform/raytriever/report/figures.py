"""Style of all figures, and charts of models: gains over a baseline, curves by step, thresholds, varied settings.

Colours are safe for colour-blind readers. Each figure is written as PNG for documents and the tracker, and as SVG for
pages, where text stays text. Both depend on the drawn data alone: they hold no date and no random ids."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from raytriever.storage import disk_errors

# Okabe and Ito, Color Universal Design (2008), the yellow left out: too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
WIDTH, HEIGHT = 4.8, 3.6  # inches
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "text.parse_math": False,  # a dollar in the name of a model is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "raytriever",
}
Line = tuple[str, Any]


@contextmanager
def picture(path: Path, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    """Yield an empty figure, `width` by `height` inches, and write it to `path` as PNG, and next to it as SVG.

    Raises:
        StorageError: the disk is full or forbidden.
    """
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks: the SVG has the text, whatever the PNG shows.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path.with_suffix(".png"), dpi=120)
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def lines() -> Iterator[Line]:
    """Colours, and a dash for each round of colours: seven curves differ by colour, more by both."""
    for dash in cycle(DASHES):
        for colour in COLOURS:
            yield colour, dash


def label(name: str, characters: int = 34) -> str:
    """A name as a legend can hold it: cut in the middle where long; matplotlib would hide one that begins with `_`."""
    if len(name) > characters:
        half = (characters - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return f" {name}" if name.startswith("_") else name


def plain_log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 of each power, in plain numbers; by itself it would tell formulas."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, place: f"{value:,.6g}")
    axis.set_minor_formatter(NullFormatter())


Curve = Sequence[tuple[int, float]]
BAR = 0.16  # inches


def save_gains(path: Path, gains: Mapping[str, Mapping[str, float]], metric: str, baseline: str) -> None:
    """A bar a data set and model: how far it stands above (or below) the baseline in one metric.

    As Figure 4 of *Optimizing What Matters*, lying: names of data sets stay readable however many there are.

    Args:
        path: path of the PNG; the SVG is written next to it.
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
    """Draw the wanted value of each threshold (a tick) and the value on the checking split with its interval.

    Args:
        path: path of the PNG; the SVG is written next to it.
        rows: of `evaluation.pooled_scores.calibration_rows`, one data set's, each with what was checked.
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


PANEL = 3.4  # inches of width
# A point: where it stands, its mean, its standard deviation over seeds (NaN for one seed).
Points = Sequence[tuple[float, float, float]]


def save_lines(path: Path, panels: Mapping[str, Mapping[str, Points]], across: str, value: str) -> None:
    """Means with their deviations over seeds, one curve a name, panels side by side on one scale.

    What was tried stands at equal distances: on a scale of its own 0, 0.001 and 0.1 would lie on each other.

    Args:
        path: path of the PNG; the SVG is written next to it.
        panels: by title, and in each the curves by name; a title may be empty.
        across: what is varied.
        value: what is drawn.
    """
    width = WIDTH if len(panels) == 1 else PANEL * len(panels)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    looks = dict(zip(names, lines(), strict=False))
    with picture(path, width, HEIGHT + 0.2 * (len(names) > 1)) as figure:
        shared = None
        for place, (title, curves) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place, sharey=shared)
            shared = shared or axes
            tried = sorted({x for points in curves.values() for x, _, _ in points})
            for name, points in curves.items():
                colour, dash = looks[name]
                where, means, deviations = zip(*sorted(points), strict=True)
                around = [deviation if deviation == deviation else 0.0 for deviation in deviations]
                axes.errorbar(
                    [tried.index(x) for x in where],
                    means,
                    yerr=around,
                    color=colour,
                    linestyle=dash,
                    marker="o",
                    markersize=3.5,
                    capsize=2,
                    label=label(name) if name else None,
                )
            axes.set(xlabel=across, title=title)
            axes.set_xticks(range(len(tried)), [f"{x:g}" for x in tried], rotation=45 if len(tried) > 5 else 0)
        figure.axes[0].set_ylabel(value)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(handles)))
