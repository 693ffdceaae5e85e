"""How many positives and negatives score what: two histograms over the same bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, scores_of


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
