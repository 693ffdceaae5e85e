"""Figures of pooled scores: ROC curves with bands, histograms, and the share of relevant pairs by score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from raytriever.metrics.auc import pooled_auc, roc_curve
from raytriever.metrics.calibration import ScoredPools
from raytriever.metrics.intervals import wilson
from raytriever.report.figures import COLOURS, WIDTH, Styles, label, picture, styles_of

ROC_POINTS = 150
BINS = 40
MIN_SCORES = 5  # a bin with fewer scores has no share
PANEL = 1.7  # inches of height
NEGATIVE, POSITIVE = COLOURS[5], COLOURS[0]


def save_score_figures(
    folder: Path, systems: Mapping[str, ScoredPools], dataset: str = "", styles: Styles | None = None
) -> dict[Path, str]:
    """Draw ROC curves, histograms and the share of relevant pairs; return captions by the paths of the PNG files.

    A data set is named in the files, the title of the ROC curves and the captions. Styles are those of `styles_of`.
    """
    roc, scores, shares = (
        folder / f"{name}{f'.{dataset}' if dataset else ''}.png" for name in ("roc", "scores", "calibration")
    )
    save_roc(roc, systems, f"ROC curves, {dataset}" if dataset else "", styles)
    save_score_histograms(scores, systems)
    save_calibration(shares, systems)
    captions = {
        roc: "ROC curves with 95 % bands",
        scores: "Scores of positives and of the best non-positives",
        shares: "Share of relevant pairs by score",
    }
    return {path: f"{caption}, {dataset}" if dataset else caption for path, caption in captions.items()}


def save_roc(path: Path, systems: Mapping[str, ScoredPools], title: str = "", styles: Styles | None = None) -> None:
    """Draw the share of positives against the share of negatives above every threshold, one curve per system.

    Each curve has a simultaneous 95 % band: it contains the whole curve. A system with an empty pool has no curve.
    Styles are those of `styles_of`.
    """
    styles = styles or styles_of(systems)
    with picture(path, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        for name, pools in _without_empty_pools(systems).items():
            colour, dash = styles[name]
            curve = roc_curve(pools.positives, pools.negatives, ROC_POINTS)
            area = pooled_auc(pools.positives, pools.negatives)
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


def save_score_histograms(path: Path, systems: Mapping[str, ScoredPools], title: str = "") -> None:
    """Draw histograms of the scores of positives and of the best non-positives, one panel per system."""
    with _panels(path, systems, title or "Scores of positives and of the best non-positives", 0.9) as panels:
        for axes, pools in panels:
            edges, positives, negatives = _histograms(pools)
            for text, counts, colour in (
                ("best non-positives", negatives, NEGATIVE),
                ("positives", positives, POSITIVE),
            ):
                density = counts / max(1, counts.sum()) / np.diff(edges)
                axes.stairs(density, edges, fill=True, color=colour, alpha=0.35, label=text)
                axes.stairs(density, edges, color=colour, linewidth=1.2)
            axes.set_ylabel("density")
        if panels:
            first = panels[0][0]
            first.figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def save_calibration(path: Path, systems: Mapping[str, ScoredPools]) -> None:
    """Draw the share of relevant pairs at each score, with Wilson's 95 % bounds, one panel per system.

    If a score means the same for all queries, the share rises steeply from 0 to 1: a threshold there separates
    relevant documents from others. Bins have equal width. Bins with fewer than five scores are not drawn.
    """
    with _panels(path, systems, "Share of relevant pairs by score", 0.6) as panels:
        for axes, pools in panels:
            middles, shares, low, high = _shares(pools)
            axes.plot(middles, shares, color=POSITIVE, marker="o", markersize=3)
            axes.fill_between(middles, low, high, color=POSITIVE, alpha=0.2, linewidth=0)
            axes.set(ylabel="share relevant", ylim=(-0.02, 1.02))


@contextmanager
def _panels(
    path: Path, systems: Mapping[str, ScoredPools], title: str, margin: float
) -> Iterator[list[tuple[Any, ScoredPools]]]:
    """Yield a panel for each system with scores, below each other over one axis of scores."""
    filled = _without_empty_pools(systems)
    with picture(path, WIDTH, margin + PANEL * max(1, len(filled))) as figure:
        panels = [(figure.add_subplot(len(filled), 1, row + 1), name) for row, name in enumerate(filled)]
        yield [(axes, filled[name]) for axes, name in panels]
        for axes, name in panels:
            axes.set_title(label(name, 48), loc="left")
        figure.suptitle(title, fontsize=11)
        if panels:
            panels[-1][0].set_xlabel("score")


def _histograms(pools: ScoredPools) -> tuple[ndarray, ndarray, ndarray]:
    """Return edges of bins of equal width over all finite scores, and the counts of both pools."""
    positives, negatives = (pool[np.isfinite(pool)] for pool in (pools.positives, pools.negatives))
    scores = np.concatenate([positives, negatives]).astype(np.float64)
    edges = np.histogram_bin_edges(scores, BINS)
    return edges, np.histogram(positives, edges)[0], np.histogram(negatives, edges)[0]


def _shares(pools: ScoredPools) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return the middle of each bin with enough scores, its share of relevant pairs, and the bounds of the share."""
    edges, positives, negatives = _histograms(pools)
    whole = positives + negatives
    bins = np.flatnonzero(whole >= MIN_SCORES)
    bounds = np.array([wilson(int(positives[bin]), int(whole[bin])) for bin in bins]).reshape(-1, 2)
    middles = (edges[:-1] + edges[1:]) / 2
    return middles[bins], positives[bins] / whole[bins], bounds[:, 0], bounds[:, 1]


def _without_empty_pools(systems: Mapping[str, ScoredPools]) -> dict[str, ScoredPools]:
    return {name: pools for name, pools in systems.items() if len(pools.positives) and len(pools.negatives)}
