"""The ROC curve of two pools: the share of positives at or above every threshold against that of negatives.

Ten million scores have millions of thresholds. The curve is thinned to those at evenly spread ranks of either pool: at
each kept threshold both shares are exact, and between two neighbours neither grows by more than 1 / points and one
score, but for equal scores, between which the curve is straight anyway.

The band holds the whole true curve with the wanted confidence, whatever the distributions: each pool's shares are known
at every threshold at once to within d = sqrt(ln(2 / a) / 2n) (Dvoretzky, Kiefer & Wolfowitz, 1956, with the constant of
Massart, 1990), a = 1 - sqrt(confidence) as both pools must hold together, and the band is where such rectangles around
the curve reach (Campbell, 1994). It takes scores for independent draws, which scores of one query are not: the more
queries and the fewer scores of each, the better it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64
from numpy import ndarray

from raytriever.metrics.auc import sorted_pools
from raytriever.metrics.inputs import MetricInputError, check_confidence


@dataclass(frozen=True)
class RocCurve:
    """Points from (0, 0) to (1, 1), the threshold falling from infinity.

    Args:
        thresholds: a score counts as positive from here on; the first is infinite and stands above every score.
        false_positive_rate: the share of negatives at or above the threshold.
        true_positive_rate: that of positives.
        low, high: the band of the true positive rate.
    """

    thresholds: Float64[ndarray, " points"]
    false_positive_rate: Float64[ndarray, " points"]
    true_positive_rate: Float64[ndarray, " points"]
    low: Float64[ndarray, " points"]
    high: Float64[ndarray, " points"]


def roc_curve(
    positives: Float[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    points: int = 1000,
    confidence: float = 0.95,
) -> RocCurve:
    """The curve at about `points` thresholds of each pool, and its simultaneous band.

    Args:
        positives, negatives: scores of any range and order, infinities allowed.
        points: at least 1.
        confidence: of the band, above 0 and below 1.

    Raises:
        MetricInputError: a pool is empty or a score is NaN.
    """
    check_confidence(confidence)
    if points < 1 or not len(positives) or not len(negatives):
        raise MetricInputError("a curve without points or a pool without scores", "ROC curve", "give some of each")
    above, below = sorted_pools(positives, negatives)
    kept = np.unique(np.concatenate([pool[_spread(len(pool), points)] for pool in (above, below)]))[::-1]
    true = np.r_[0, 1 - np.searchsorted(above, kept) / len(above)]
    false = np.r_[0, 1 - np.searchsorted(below, kept) / len(below)]
    aside, upward = (_reach(len(pool), confidence) for pool in (below, above))
    # The corners of the rectangles; between kept thresholds, those of the neighbour that lies further out.
    lowest = np.maximum(np.searchsorted(false, false - aside, side="left") - 1, 0)
    highest = np.minimum(np.searchsorted(false, false + aside, side="right"), len(false) - 1)
    return RocCurve(
        np.r_[np.inf, kept.astype(np.float64)],
        false,
        true,
        np.maximum(true[lowest] - upward, 0),
        np.minimum(true[highest] + upward, 1),
    )


def _spread(length: int, points: int) -> ndarray:
    """Ranks that lie at most `length / points + 1` apart, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(points, length - 1) + 1).astype(np.int64))


def _reach(size: int, confidence: float) -> float:
    return float(np.sqrt(np.log(2 / (1 - np.sqrt(confidence))) / (2 * size)))
