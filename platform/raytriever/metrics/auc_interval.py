"""How sure an AUC is: its standard error after DeLong, DeLong & Clarke-Pearson (1988), with scores clustered by query
after Obuchowski (1997).

The placement of a positive is the share of negatives below it, V(p) = mean_n ([p > n] + [p = n] / 2); that of a
negative, W(n), the share of positives above it. Both have the AUC θ as their mean.

    independent scores:  var θ = var V / |P| + var W / |N|                                                   (DeLong)
    clusters q of I:     var θ = S_P / |P| + S_N / |N| + 2 S_PN / |P||N|                                  (Obuchowski)
        A_q = Σ_{p in q} (V(p) - θ),  B_q = Σ_{n in q} (W(n) - θ)
        S_P = I_P / ((I_P - 1) |P|) Σ A_q²,  S_N likewise,  S_PN = I / (I - 1) Σ A_q B_q

where I_P and I_N count the queries that have a positive, a negative. Scores of one query rise and fall together, so
DeLong's error, which takes them for independent, is wrong for a pool of many queries, and may be so either way.
Placements are found by merging sorted pools (Sun & Xu, 2014). The interval is taken on the logit, so that it stays
within 0 and 1 (Pepe, 2003).
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from scipy.special import expit, logit, ndtri

from raytriever.metrics.auc import sorted_pools
from raytriever.metrics.inputs import MetricInputError, check_confidence, check_queries


@dataclass(frozen=True)
class AucInterval:
    """An AUC, its standard error, and the bounds of its confidence interval, all from 0 to 1.

    The error and the bounds are NaN where nothing can be said: fewer than two positives, negatives or clusters, or
    pools that lie wholly apart, whose estimated variance is 0.
    """

    auc: float
    standard_error: float
    low: float
    high: float


def auc_interval(
    positives: Float[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    positive_queries: Int64[ndarray, " positives"] | None = None,
    negative_queries: Int64[ndarray, " negatives"] | None = None,
    confidence: float = 0.95,
) -> AucInterval:
    """The AUC of two pools and how sure it is; Obuchowski's where queries are given, else DeLong's.

    Args:
        positives, negatives: scores of any range and order, infinities allowed.
        positive_queries, negative_queries: to which query each belongs, from 0; both or neither.
        confidence: how often such an interval holds the true value, above 0 and below 1.

    Raises:
        MetricInputError: a pool is empty, a score is NaN, or not every score of both pools names a query.
    """
    check_confidence(confidence)
    if not len(positives) or not len(negatives):
        raise MetricInputError("a pool without scores", "AUC interval", "give positives and negatives")
    if (positive_queries is None) != (negative_queries is None):
        raise MetricInputError("queries of one pool only", "AUC interval", "name those of both pools, or of neither")
    above, below = sorted_pools(positives, negatives)
    of_positives = places(above, below) / (2.0 * len(below))
    of_negatives = 1 - places(below, above) / (2.0 * len(above))
    area = float(of_positives.mean())
    if positive_queries is None or negative_queries is None:
        variance = _variance(of_positives) / len(above) + _variance(of_negatives) / len(below)
    else:
        check_queries(positive_queries, positives, "scores of positives")
        check_queries(negative_queries, negatives, "scores of negatives")
        # Placements stand in the order of the sorted scores; so must the queries.
        ours, theirs = positive_queries[np.argsort(positives)], negative_queries[np.argsort(negatives)]
        variance = _clustered(of_positives - area, ours, of_negatives - area, theirs)
    error = float(np.sqrt(variance)) if variance > 0 and 0 < area < 1 else float("nan")
    reach = ndtri((1 + confidence) / 2) * error / (area * (1 - area)) if error == error else float("nan")
    low, high = (float(expit(logit(area) + side * reach)) if reach == reach else reach for side in (-1, 1))
    return AucInterval(area, error, low, high)


def _variance(placements: Float64[ndarray, " scores"]) -> float:
    return float(placements.var(ddof=1)) if len(placements) > 1 else float("nan")


def _clustered(above: ndarray, positive_queries: ndarray, below: ndarray, negative_queries: ndarray) -> float:
    count = int(max(positive_queries.max(), negative_queries.max())) + 1
    with_positive = np.bincount(positive_queries, minlength=count) > 0
    with_negative = np.bincount(negative_queries, minlength=count) > 0
    fewest = min(with_positive.sum(), with_negative.sum())
    if fewest < 2:
        return float("nan")
    ours = np.bincount(positive_queries, above, count) / len(above)
    theirs = np.bincount(negative_queries, below, count) / len(below)

    def inflated(clusters: ndarray) -> float:
        return float(clusters.sum() / (clusters.sum() - 1))

    return (
        inflated(with_positive) * float(ours @ ours)
        + inflated(with_negative) * float(theirs @ theirs)
        + 2 * inflated(with_positive | with_negative) * float(ours @ theirs)
    )


@numba.njit(cache=True)
def places(scores, others):  # type: ignore[no-untyped-def]
    """Twice the number of `others` below each score plus that of equal ones; both ascending."""
    found = np.empty(len(scores))
    below = not_above = 0
    for place, score in enumerate(scores):
        while below < len(others) and others[below] < score:
            below += 1
        not_above = max(below, not_above)
        while not_above < len(others) and others[not_above] <= score:
            not_above += 1
        found[place] = below + not_above
    return found
