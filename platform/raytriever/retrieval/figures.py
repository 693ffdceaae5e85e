"""The pictures of a run: ROC curves, the scores of positives and negatives, the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed or touched

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from numpy import ndarray

from raytriever.metrics.auc import auc
from raytriever.retrieval.evaluate import Evaluation
from raytriever.storage import disk_errors

ROC_POINTS = 2000


def save_roc(path: Path, evaluations: Mapping[str, Evaluation]) -> None:
    """The share of positives against the share of negatives above every threshold, one curve a system."""
    figure, axes = plt.subplots(figsize=(5, 5))
    for name, found in evaluations.items():
        false_share, true_share = _roc(found.positive_scores, found.negative_scores)
        axes.plot(
            false_share,
            true_share,
            label=f"{name}, AUC {auc(found.positive_scores, found.negative_scores):.3f}",
        )
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    axes.set(
        xlabel="negatives above the threshold",
        ylabel="positives above the threshold",
        title="ROC, all queries pooled",
    )
    axes.legend(loc="lower right")
    _save(figure, path)


def save_score_histograms(path: Path, evaluations: Mapping[str, Evaluation]) -> None:
    """How far the scores of positives and of hard negatives lie apart, one panel a system."""
    figure, panels = plt.subplots(1, len(evaluations), figsize=(4.5 * len(evaluations), 3.5), squeeze=False)
    for axes, (name, found) in zip(panels[0], evaluations.items(), strict=True):
        low = min(found.positive_scores.min(), found.negative_scores.min())
        high = max(found.positive_scores.max(), found.negative_scores.max())
        bins = np.linspace(low, high, 60)
        for label, pool in (
            ("500 best non-positives", found.negative_scores),
            ("positives", found.positive_scores),
        ):
            axes.hist(pool, bins, density=True, alpha=0.6, label=label)
        axes.set(title=name, xlabel="score", ylabel="density")
        axes.margins(y=0.3)  # room for the legend above the bars
        axes.legend(loc="upper right")
    _save(figure, path)


def save_losses(path: Path, losses: Sequence[tuple[int, float]], dev_losses: Sequence[tuple[int, float]]) -> None:
    """The loss of every step and the dev loss of every look."""
    figure, axes = plt.subplots(figsize=(6, 3.5))
    for points, label, style in ((losses, "train", "-"), (dev_losses, "dev", "o-")):
        if points:
            steps, values = zip(*points, strict=True)
            axes.plot(steps, values, style, label=label, linewidth=1.2, markersize=4)
    axes.set(xlabel="step", ylabel="loss", title="loss")
    axes.legend()
    _save(figure, path)


def _roc(positives: ndarray, negatives: ndarray) -> tuple[ndarray, ndarray]:
    """The curve at thresholds spread evenly over the ranks of both pools."""
    thresholds = np.sort(np.concatenate([positives, negatives]))
    thresholds = thresholds[np.linspace(0, len(thresholds) - 1, min(ROC_POINTS, len(thresholds))).astype(int)]

    def share_above(pool: ndarray) -> ndarray:
        above = 1 - np.searchsorted(np.sort(pool), thresholds, side="left") / len(pool)
        return np.concatenate([above, [0.0]])

    return share_above(negatives), share_above(positives)


def _save(figure: Figure, path: Path) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
