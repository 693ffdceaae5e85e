"""Style of all plots, and the plots of models (gains, curves by step, thresholds, variants) and of pooled scores.

Colors are safe for color-blind readers. Each figure is written as PNG for documents and the tracker, and as SVG for
pages, where text can be selected. Both depend only on the plotted data: they contain no date and no random ids."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy import ndarray

from raytriever.core.errors import disk_errors
from raytriever.evaluation.protocol import target_text
from raytriever.evaluation.results import ThresholdRow
from raytriever.metrics.auc import pooled_auc, roc_curve
from raytriever.metrics.intervals import wilson
from raytriever.metrics.pair_threshold import ScoredPools

# Colors of Okabe and Ito, Color Universal Design (2008), without yellow, which is too pale for a line on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
WIDTH, HEIGHT = 4.8, 3.6  # default size of a figure in inches
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
    "text.parse_math": False,  # keep a dollar sign in the name of a model as it is
    "svg.fonttype": "none",
    "svg.hashsalt": "raytriever",
}
Line = tuple[str, Any]
Styles = Mapping[str, Line]


@contextmanager
def picture(path: Path, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    """Yield an empty figure of `width` by `height` inches. Then write it to `path` as PNG, and next to it as SVG."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The font of matplotlib has no letters of some scripts. Then the PNG shows boxes; the SVG keeps the text.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path.with_suffix(".png"), dpi=120)
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def lines() -> Iterator[Line]:
    """Yield line styles: all colors with the first dash, then all colors with the next dash, and so on."""
    for dash in cycle(DASHES):
        for color in COLORS:
            yield color, dash


def styles_of(names: Iterable[str]) -> dict[str, Line]:
    """Return the line style of each system on a page, so that a system has the same color in all plots."""
    return dict(zip(names, lines(), strict=False))


def label(name: str, characters: int = 34) -> str:
    """Return a name for a legend. A long name loses its middle. Matplotlib would hide a name that begins with `_`."""
    if len(name) > characters:
        half = (characters - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return f" {name}" if name.startswith("_") else name


def plain_log_ticks(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis at 1, 2 and 5 of each power of ten, with plain numbers as labels."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, position: f"{value:,.6g}")
    axis.set_minor_formatter(NullFormatter())


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.margins(x=0.08)


Curve = Sequence[tuple[int, float]]
BAR = 0.16  # height of a bar in inches


def save_gains(
    path: Path, gains: Mapping[str, Mapping[str, float]], metric: str, baseline: str, styles: Styles | None = None
) -> None:
    """Plot the difference of each model from the baseline in one metric, as one bar per data set and model.

    The plot follows Figure 4 of *Optimizing What Matters*, but with horizontal bars, so that many data sets stay
    readable. A data set without a value has no bar. `styles` comes from `styles_of`."""
    styles = styles or styles_of(gains)
    datasets = list(dict.fromkeys(name for model_gains in gains.values() for name in model_gains))
    height = 1.2 + len(datasets) * (0.12 + BAR * len(gains)) + 0.18 * len(gains)
    with picture(path, WIDTH, height) as figure:
        axes = figure.add_subplot()
        thick = 0.8 / max(1, len(gains))
        rows = np.arange(len(datasets))
        for number, (model, model_gains) in enumerate(gains.items()):
            values = [model_gains.get(dataset, np.nan) for dataset in datasets]
            offset = (number - (len(gains) - 1) / 2) * thick
            axes.barh(rows + offset, values, thick * 0.9, color=styles[model][0], label=label(model))
        axes.axvline(0, color="0.2", linewidth=1)
        _name_rows(axes, [label(dataset, 22) for dataset in datasets])
        axes.locator_params(axis="x", nbins=5)
        axes.set(xlabel=f"{metric}, above or below {label(baseline)}", title=f"Gain in {metric}")
        if gains:
            figure.legend(loc="outside lower left")


def save_curves(path: Path, curves: Mapping[str, Curve], value: str, styles: Styles | None = None) -> None:
    """Plot a value by step, with one curve per name. A curve without points is left out."""
    styles = styles or styles_of(curves)
    with picture(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for name, points in curves.items():
            color, dash = styles[name]
            if points:
                steps, values = zip(*points, strict=True)
                marker = "o" if len(points) < 20 else ""
                axes.plot(steps, values, color=color, linestyle=dash, marker=marker, markersize=3.5, label=label(name))
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="step", ylabel=value, title=value)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")


def save_thresholds(path: Path, rows: Sequence[ThresholdRow], styles: Styles) -> None:
    """Plot each threshold: its target as a line, and the value on the testing split with its interval.

    The rows must belong to one data set, and each must have a tested value."""
    models = list(dict.fromkeys(row.model for row in rows))
    targets = list(dict.fromkeys((row.target, row.wanted) for row in rows))
    height = 1.3 + len(targets) * (0.15 + BAR * len(models)) + 0.18 * len(models)
    with picture(path, WIDTH, height) as figure:
        axes = figure.add_subplot()
        thick = 0.8 / len(models)
        for number, model in enumerate(models):
            own = [row for row in rows if row.model == model]
            offset = (number - (len(models) - 1) / 2) * thick
            positions = [targets.index((row.target, row.wanted)) + offset for row in own]
            fractions = [row.checked for row in own if row.checked is not None]
            values, low, high = (
                np.array([getattr(fraction, name) for fraction in fractions]) for name in ("value", "low", "high")
            )
            errors = np.maximum(0.0, [values - low, high - values])
            axes.errorbar(
                values,
                positions,
                xerr=errors,
                fmt="o",
                color=styles[model][0],
                markersize=4,
                capsize=2,
                label=label(model),
            )
        for row, (_, value) in enumerate(targets):
            if value is not None:
                axes.vlines(value, row - 0.45, row + 0.45, color="0.2", linewidth=1)
        _name_rows(axes, [target_text(*target) for target in targets])
        axes.set(xlabel="value on the testing split", title="Thresholds (line: target)")
        figure.legend(loc="outside lower left")


def save_sizes(path: Path, curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], value: str) -> None:
    """Plot a metric over the bytes of a document: a curve per model and type, a point per number of components."""
    with picture(path, WIDTH, HEIGHT + 0.2) as figure:
        axes = figure.add_subplot()
        styles = lines()
        for model, types in curves.items():
            for dtype, points in types.items():
                color, dash = next(styles)
                sizes, values = zip(*sorted(points), strict=True)
                name = f"{model}, {dtype}" if len(curves) > 1 else dtype
                axes.plot(sizes, values, color=color, linestyle=dash, marker="o", markersize=4, label=label(name))
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        axes.set(xlabel="bytes of a document", ylabel=value, title=f"{value} by bytes of a document")
        figure.legend(loc="outside lower center", ncols=2 if len(curves) > 1 else 4)


ROC_POINTS = 150
BINS = 40
MIN_SCORES = 5  # a bin with fewer scores is not plotted
PANEL_HEIGHT = 1.7  # height of a panel in inches
NEGATIVE, POSITIVE = COLORS[5], COLORS[0]


def save_roc(path: Path, systems: Mapping[str, ScoredPools], title: str = "", styles: Styles | None = None) -> None:
    """Plot the fraction of positives against the fraction of negatives above every threshold, one curve per system.

    The 95 % band is simultaneous: it covers the whole curve. A system with an empty pool has no curve. `styles`
    comes from `styles_of`."""
    styles = styles or styles_of(systems)
    with picture(path, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        for name, pools in _without_empty_pools(systems).items():
            color, dash = styles[name]
            curve = roc_curve(pools.positives, pools.negatives, ROC_POINTS)
            area = pooled_auc(pools.positives, pools.negatives)
            axes.plot(
                curve.false_positive_rate,
                curve.true_positive_rate,
                color=color,
                linestyle=dash,
                label=f"{label(name)}  {area:.3f}",
            )
            axes.fill_between(curve.false_positive_rate, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axes.set(
            xlabel="negatives above the threshold",
            ylabel="positives above the threshold",
            title=title or "ROC, all queries pooled",
            xlim=(0, 1),
            ylim=(0, 1.01),
            aspect="equal",
        )
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", title="AUC")


def save_score_histograms(path: Path, systems: Mapping[str, ScoredPools], title: str = "") -> None:
    """Plot histograms of the scores of positives and of the best non-positives, one panel per system."""
    with _panels(path, systems, title or "Scores of positives and of the best non-positives", 0.9) as panels:
        for axes, pools in panels:
            edges, positives, negatives = _histograms(pools)
            for text, counts, color in (
                ("best non-positives", negatives, NEGATIVE),
                ("positives", positives, POSITIVE),
            ):
                density = counts / max(1, counts.sum()) / np.diff(edges)
                axes.stairs(density, edges, fill=True, color=color, alpha=0.35, label=text)
                axes.stairs(density, edges, color=color, linewidth=1.2)
            axes.set_ylabel("density")
        if panels:
            first = panels[0][0]
            first.figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def save_calibration(path: Path, systems: Mapping[str, ScoredPools]) -> None:
    """Plot the fraction of relevant pairs at each score, with Wilson's 95 % bounds, one panel per system.

    If a score means the same for all queries, the fraction rises steeply from 0 to 1: a threshold there separates
    relevant documents from others. Bins have equal width. Bins with fewer than five scores are not plotted."""
    with _panels(path, systems, "Fraction of relevant pairs by score", 0.6) as panels:
        for axes, pools in panels:
            middles, fractions, low, high = _fractions(pools)
            axes.plot(middles, fractions, color=POSITIVE, marker="o", markersize=3)
            axes.fill_between(middles, low, high, color=POSITIVE, alpha=0.2, linewidth=0)
            axes.set(ylabel="fraction relevant", ylim=(-0.02, 1.02))


@contextmanager
def _panels(
    path: Path, systems: Mapping[str, ScoredPools], title: str, margin: float
) -> Iterator[list[tuple[Any, ScoredPools]]]:
    filled = _without_empty_pools(systems)
    with picture(path, WIDTH, margin + PANEL_HEIGHT * max(1, len(filled))) as figure:
        panels = [(figure.add_subplot(len(filled), 1, row + 1), name) for row, name in enumerate(filled)]
        yield [(axes, filled[name]) for axes, name in panels]
        for axes, name in panels:
            axes.set_title(label(name, 48), loc="left")
        figure.suptitle(title, fontsize=11)
        if panels:
            panels[-1][0].set_xlabel("score")


def _histograms(pools: ScoredPools) -> tuple[ndarray, ndarray, ndarray]:
    positives, negatives = (pool[np.isfinite(pool)] for pool in (pools.positives, pools.negatives))
    scores = np.concatenate([positives, negatives]).astype(np.float64)
    edges = np.histogram_bin_edges(scores, BINS)
    return edges, np.histogram(positives, edges)[0], np.histogram(negatives, edges)[0]


def _fractions(pools: ScoredPools) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return the middle of each bin with enough scores, its fraction of relevant pairs, and that fraction's bounds."""
    edges, positives, negatives = _histograms(pools)
    whole = positives + negatives
    bins = np.flatnonzero(whole >= MIN_SCORES)
    bounds = np.array([wilson(int(positives[bin]), int(whole[bin])) for bin in bins]).reshape(-1, 2)
    middles = (edges[:-1] + edges[1:]) / 2
    return middles[bins], positives[bins] / whole[bins], bounds[:, 0], bounds[:, 1]


def _without_empty_pools(systems: Mapping[str, ScoredPools]) -> dict[str, ScoredPools]:
    return {name: pools for name, pools in systems.items() if len(pools.positives) and len(pools.negatives)}
