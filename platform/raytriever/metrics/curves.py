"""ROC curve of two pools of scores with its confidence band, and histograms of both pools over the same bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.auc import sort_pools
from raytriever.metrics.inputs import MetricInputError, check_confidence, scores_of


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
    above, below = sort_pools(positives, negatives)
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


@dataclass(frozen=True)
class ScoreHistograms:
    """Counts of both pools over shared bins of equal width; infinite scores are in no bin.

    Args:
        edges: of the bins, ascending; a bin holds its lower edge, the last one its upper edge too.
        positives, negatives: scores in each bin.
        infinite: infinite scores of positives, and of negatives.
    """

    edges: Float64[ndarray, " bins_and_one"]
    positives: Int64[ndarray, " bins"]
    negatives: Int64[ndarray, " bins"]
    infinite: tuple[int, int]


def score_histograms(
    positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"], bins: int = 60
) -> ScoreHistograms:
    """The histograms over the range of all finite scores.

    Raises:
        MetricInputError: a score is NaN, none is finite, or there are no bins.
    """
    pools = scores_of(positives, "scores of positives"), scores_of(negatives, "scores of negatives")
    finite = [pool[np.isfinite(pool)] for pool in pools]
    if bins < 1 or not (len(finite[0]) or len(finite[1])):
        raise MetricInputError("no bins or no finite score", "histograms", "give some of each")
    low = min(float(pool.min()) for pool in finite if len(pool))
    high = max(float(pool.max()) for pool in finite if len(pool))
    edges = np.histogram_bin_edges(np.array([low, high]), bins)
    ours, theirs = (np.histogram(pool, edges)[0].astype(np.int64) for pool in finite)
    return ScoreHistograms(edges, ours, theirs, (len(pools[0]) - len(finite[0]), len(pools[1]) - len(finite[1])))
