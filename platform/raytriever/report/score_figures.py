"""Pictures of scores: ROC curves with their bands, both pools' histograms, and what share of scores is relevant."""

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
from raytriever.report.figures import COLOURS, WIDTH, label, lines, picture

ROC_POINTS = 150
BINS = 40
FEWEST = 5  # scores in a bin whose share of positives is drawn
PANEL = 1.7  # inches of height
NEGATIVE, POSITIVE = COLOURS[5], COLOURS[0]


class Pools(Protocol):
    """The pooled scores of one system: an `Evaluation`, or what was read back of one."""

    @property
    def positive_scores(self) -> Float[ndarray, " positives"]:
        """Of all positives of all queries."""

    @property
    def negative_scores(self) -> Float[ndarray, " negatives"]:
        """Of each query's highest-scoring non-positives."""


def save_roc(path: Path, systems: Mapping[str, Pools], title: str = "") -> None:
    """The share of positives against the share of negatives above every threshold, one curve a system.

    Each curve has its 95 % band, which holds the whole curve at once.

    Args:
        path: path of the PNG; the SVG is written next to it.
        systems: by name; one whose pools are not both filled has no curve and is left out.
        title: above the picture.
    """
    with picture(path, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        for (name, pools), (colour, dash) in zip(_filled(systems).items(), lines(), strict=False):
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
    filled = _filled(systems)
    with picture(path, WIDTH, 0.9 + PANEL * max(1, len(filled))) as figure:
        for row, (name, pools) in enumerate(filled.items()):
            axes = figure.add_subplot(len(filled), 1, row + 1)
            found = score_histograms(pools.positive_scores, pools.negative_scores, BINS)
            for text, counts, colour in (
                ("best non-positives", found.negatives, NEGATIVE),
                ("positives", found.positives, POSITIVE),
            ):
                density = counts / max(1, counts.sum()) / np.diff(found.edges)
                axes.stairs(density, found.edges, fill=True, color=colour, alpha=0.35, label=text)
                axes.stairs(density, found.edges, color=colour, linewidth=1.2)
            axes.set_title(label(name, 48), loc="left")
            axes.set_ylabel("density")
        if filled:
            figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        _finish(figure, title or "Scores of positives and of the best non-positives", "score")


def save_calibration(path: Path, systems: Mapping[str, Pools], title: str = "") -> None:
    """Draw the share of relevant pairs at each score, with Wilson's 95 % bounds, one panel per system.

    A score that means the same for all queries gives a steep rise from 0 to 1: a threshold there parts relevant from
    other documents. Bins are of equal width; those of fewer than five scores are not drawn.
    """
    filled = _filled(systems)
    with picture(path, WIDTH, 0.6 + PANEL * max(1, len(filled))) as figure:
        for row, (name, pools) in enumerate(filled.items()):
            axes = figure.add_subplot(len(filled), 1, row + 1)
            middles, shares, low, high = _shares(score_histograms(pools.positive_scores, pools.negative_scores, BINS))
            axes.plot(middles, shares, color=POSITIVE, marker="o", markersize=3)
            axes.fill_between(middles, low, high, color=POSITIVE, alpha=0.2, linewidth=0)
            axes.set_title(label(name, 48), loc="left")
            axes.set(ylabel="share relevant", ylim=(-0.02, 1.02))
        _finish(figure, title or "Share of relevant pairs among those that score so", "score")


def _shares(found: ScoreHistograms) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    whole = found.positives + found.negatives
    kept = np.flatnonzero(whole >= FEWEST)
    bounds = np.array([wilson(int(found.positives[bin]), int(whole[bin])) for bin in kept]).reshape(-1, 2)
    middles = (found.edges[:-1] + found.edges[1:]) / 2
    return middles[kept], found.positives[kept] / whole[kept], bounds[:, 0], bounds[:, 1]


def _filled(systems: Mapping[str, Pools]) -> dict[str, Pools]:
    return {name: pools for name, pools in systems.items() if len(pools.positive_scores) and len(pools.negative_scores)}


def _finish(figure: Figure, title: str, below: str) -> None:
    figure.suptitle(title, fontsize=11)
    if figure.axes:
        figure.axes[-1].set_xlabel(below)
