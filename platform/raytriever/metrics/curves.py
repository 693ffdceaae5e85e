"""ROC curve of two pools of scores with its confidence band."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64
from numpy import ndarray

from raytriever.metrics.auc import sort_pools
from raytriever.metrics.inputs import MetricInputError, check_confidence


@dataclass(frozen=True)
class RocCurve:
    """Points of an ROC curve from (0, 0) to (1, 1); thresholds are descending.

    Args:
        thresholds: lowest score that counts as positive; the first is infinite.
        false_positive_rate: share of negatives at or above the threshold.
        true_positive_rate: share of positives at or above the threshold.
        low, high: confidence band of the true positive rate.
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
    """Compute the ROC curve at about `points` thresholds of each pool, with a simultaneous confidence band.

    Ten million scores have millions of thresholds, so the curve keeps those at evenly spaced ranks of either pool. Both
    shares are exact at each of them. Between two neighbours neither share grows by more than 1 / points and one score,
    except for equal scores, between which the curve is straight anyway.

    The band holds the whole true curve with the given confidence, for any distributions. Each pool's shares are known
    at all thresholds at once to within d = sqrt(ln(2 / a) / 2n) (Dvoretzky, Kiefer & Wolfowitz, 1956, with the constant
    of Massart, 1990). Here a = 1 - sqrt(confidence), because both pools must hold together. The band is the region that
    such rectangles around the curve reach (Campbell, 1994). It assumes independent scores. Scores of one query are not
    independent: the more queries and the fewer scores of each, the better the band holds.

    Args:
        positives, negatives: scores of any range and order; infinities are allowed.
        points: number of thresholds of each pool, at least 1.
        confidence: confidence of the band, above 0 and below 1.
    """
    check_confidence(confidence)
    if points < 1 or not len(positives) or not len(negatives):
        raise MetricInputError(
            "a curve without points or a pool without scores", "ROC curve", "give at least one of each"
        )
    above, below = sort_pools(positives, negatives)
    thresholds = np.unique(np.concatenate([pool[_spread(len(pool), points)] for pool in (above, below)]))[::-1]
    true = np.r_[0, 1 - np.searchsorted(above, thresholds) / len(above)]
    false = np.r_[0, 1 - np.searchsorted(below, thresholds) / len(below)]
    aside, upward = (_reach(len(pool), confidence) for pool in (below, above))
    # Corners of the rectangles. Between kept thresholds the corner of the outer neighbour counts.
    lowest = np.maximum(np.searchsorted(false, false - aside, side="left") - 1, 0)
    highest = np.minimum(np.searchsorted(false, false + aside, side="right"), len(false) - 1)
    return RocCurve(
        np.r_[np.inf, thresholds.astype(np.float64)],
        false,
        true,
        np.maximum(true[lowest] - upward, 0),
        np.minimum(true[highest] + upward, 1),
    )


def _spread(length: int, points: int) -> ndarray:
    """Return ranks at most `length / points + 1` apart, with the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(points, length - 1) + 1).astype(np.int64))


def _reach(size: int, confidence: float) -> float:
    return float(np.sqrt(np.log(2 / (1 - np.sqrt(confidence))) / (2 * size)))
