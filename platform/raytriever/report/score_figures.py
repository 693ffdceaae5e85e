"""Figures of pooled scores: ROC curves with bands, histograms, and the share of relevant pairs by score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy import ndarray

from raytriever.metrics.auc import pooled_auc
from raytriever.metrics.curves import ScoreHistograms, roc_curve, score_histograms
from raytriever.metrics.proportions import wilson
from raytriever.report.figures import COLOURS, WIDTH, Styles, label, picture, styles_of

ROC_POINTS = 150
BINS = 40
MIN_SCORES = 5  # a bin with fewer scores has no share
PANEL = 1.7  # inches of height
NEGATIVE, POSITIVE = COLOURS[5], COLOURS[0]


class Pools(Protocol):
    """Pooled scores of one system: an `Evaluation`, or the scores stored by one."""

    @property
    def positive_scores(self) -> Float[ndarray, " positives"]:
        """Scores of all positives of all queries."""

    @property
    def negative_scores(self) -> Float[ndarray, " negatives"]:
        """Scores of the highest-scoring non-positives of each query."""


def save_roc(path: Path, systems: Mapping[str, Pools], title: str = "", styles: Styles | None = None) -> None:
    """Draw the share of positives against the share of negatives above every threshold, one curve per system.

    Each curve has a simultaneous 95 % band: it contains the whole curve.

    Args:
        path: path of the PNG; the SVG is written next to it.
        systems: pools by name; a system with an empty pool has no curve.
        title: title of the figure.
        styles: of the systems, from `styles_of`.
    """
    styles = styles or styles_of(systems)
    with picture(path, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        for name, pools in _without_empty_pools(systems).items():
            colour, dash = styles[name]
            curve = roc_curve(pools.positive_scores, pools.negative_scores, ROC_POINTS)
            area = pooled_auc(pools.positive_scores, pools.negative_scores)
            axes.plot(
                curve.false_positive_rate,
                curve.true_positive_rate,
                color=colour,
                linestyle=dash,
                label=f"{label(name)}  {area:.3f}",
            )
            axes.fill_between(curve.false_positive_rate, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
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


def save_score_histograms(path: Path, systems: Mapping[str, Pools], title: str = "") -> None:
    """Draw histograms of the scores of positives and of the best non-positives, one panel per system."""
    filled = _without_empty_pools(systems)
    with picture(path, WIDTH, 0.9 + PANEL * max(1, len(filled))) as figure:
        for row, (name, pools) in enumerate(filled.items()):
            axes = figure.add_subplot(len(filled), 1, row + 1)
            histograms = score_histograms(pools.positive_scores, pools.negative_scores, BINS)
            for text, counts, colour in (
                ("best non-positives", histograms.negatives, NEGATIVE),
                ("positives", histograms.positives, POSITIVE),
            ):
                density = counts / max(1, counts.sum()) / np.diff(histograms.edges)
                axes.stairs(density, histograms.edges, fill=True, color=colour, alpha=0.35, label=text)
                axes.stairs(density, histograms.edges, color=colour, linewidth=1.2)
            axes.set_title(label(name, 48), loc="left")
            axes.set_ylabel("density")
        if filled:
            figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        _finish(figure, title or "Scores of positives and of the best non-positives", "score")


def save_calibration(path: Path, systems: Mapping[str, Pools], title: str = "") -> None:
    """Draw the share of relevant pairs at each score, with Wilson's 95 % bounds, one panel per system.

    If a score means the same for all queries, the share rises steeply from 0 to 1: a threshold there separates
    relevant documents from others. Bins have equal width. Bins with fewer than five scores are not drawn.
    """
    filled = _without_empty_pools(systems)
    with picture(path, WIDTH, 0.6 + PANEL * max(1, len(filled))) as figure:
        for row, (name, pools) in enumerate(filled.items()):
            axes = figure.add_subplot(len(filled), 1, row + 1)
            middles, shares, low, high = _shares(score_histograms(pools.positive_scores, pools.negative_scores, BINS))
            axes.plot(middles, shares, color=POSITIVE, marker="o", markersize=3)
            axes.fill_between(middles, low, high, color=POSITIVE, alpha=0.2, linewidth=0)
            axes.set_title(label(name, 48), loc="left")
            axes.set(ylabel="share relevant", ylim=(-0.02, 1.02))
        _finish(figure, title or "Share of relevant pairs by score", "score")


def _shares(histograms: ScoreHistograms) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    whole = histograms.positives + histograms.negatives
    bins = np.flatnonzero(whole >= MIN_SCORES)
    bounds = np.array([wilson(int(histograms.positives[bin]), int(whole[bin])) for bin in bins]).reshape(-1, 2)
    middles = (histograms.edges[:-1] + histograms.edges[1:]) / 2
    return middles[bins], histograms.positives[bins] / whole[bins], bounds[:, 0], bounds[:, 1]


def _without_empty_pools(systems: Mapping[str, Pools]) -> dict[str, Pools]:
    return {name: pools for name, pools in systems.items() if len(pools.positive_scores) and len(pools.negative_scores)}


def _finish(figure: Figure, title: str, x_label: str) -> None:
    figure.suptitle(title, fontsize=11)
    if figure.axes:
        figure.axes[-1].set_xlabel(x_label)
