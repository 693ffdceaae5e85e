"""Area under the ROC curve (of pools and of each query), its confidence interval and pseudo-values, and ROC curves.

The AUC is the exact Mann-Whitney U statistic; ties get mid-ranks. Intervals and pseudo-values treat the scores of one
query as a cluster (Obuchowski, 1997)."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from scipy.special import expit, logit, stdtrit

from raytriever.metrics.metric_inputs import MetricInputError, check_confidence, check_queries, scores_of

# Limit of the number of pairs, because twice the number of pairs must fit in 64 bits.
MOST_PAIRS = 2**63
# If fewer clusters than this have misordered pairs, the interval may miss the true AUC too often, or be too wide.
FEW_MISORDERED = 10


def pooled_auc(positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]) -> float:
    """Compute the area under the ROC curve of pooled scores: the exact Mann-Whitney U statistic, mid-ranks for ties.

        AUC = (1 / |P||N|) Σ_{p in P} Σ_{n in N} ([p > n] + [p = n] / 2)

    It is the probability that a random positive of the pool scores higher than a random negative, regardless of their
    queries (Optimizing What Matters, section 5.1 and Lemma 1: AUC = 1 - AoC). It depends only on the order of the
    scores. Both pools are sorted and merged, and pairs are counted in integers.

    Args:
        positives: scores of relevant pairs, `[positives]`, of any range and order; infinities are allowed.
        negatives: scores of other pairs, `[negatives]`. If one pool is float64, the other is compared without rounding.

    Returns:
        A value from 0 to 1; NaN if a pool is empty.

    Raises:
        MetricInputError: a score is NaN, or there are 2^63 pairs or more.

    Examples:
        >>> rt.metrics.pooled_auc(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
        0.75
    """
    if not len(positives) or not len(negatives):
        return float("nan")
    ordered = doubled_placements(*sort_pools(positives, negatives)).sum(dtype=np.uint64)  # twice the pairs in order
    return int(ordered) / (2 * len(positives) * len(negatives))


def sort_pools(positives: ndarray, negatives: ndarray) -> tuple[ndarray, ndarray]:
    """Return both pools in ascending order, with the same type. Raise `MetricInputError` for too many pairs."""
    above, below = scores_of(positives, "scores of positives"), scores_of(negatives, "scores of negatives")
    if len(above) * len(below) >= MOST_PAIRS:
        what = f"there are {len(above)} x {len(below)} pairs of scores"
        raise MetricInputError(what, "AUC", "give pools of fewer than 2^63 pairs")
    shared = np.promote_types(above.dtype, below.dtype)
    return np.sort(above.astype(shared, copy=False)), np.sort(below.astype(shared, copy=False))


@numba.njit(cache=True)
def doubled_placements(scores, others):  # type: ignore[no-untyped-def]
    """Return, for each score, 2 * (number of `others` below it) + (number of equal ones). Both must be sorted."""
    counts = np.empty(len(scores), np.int64)
    below = not_above = 0
    for index, score in enumerate(scores):
        while below < len(others) and others[below] < score:
            below += 1
        not_above = max(below, not_above)
        while not_above < len(others) and others[not_above] <= score:
            not_above += 1
        counts[index] = below + not_above
    return counts


def auc_per_query(
    positives: Float[ndarray, " positives"],
    positive_queries: Int64[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    negative_queries: Int64[ndarray, " negatives"],
    query_count: int,
) -> Float64[ndarray, " queries"]:
    """Compute the AUC of each query's own scores.

        AUC_q = (1 / |P_q||N_q|) Σ_{p in P_q} Σ_{n in N_q} ([p > n] + [p = n] / 2)

    Scores of different queries need not be comparable. If this AUC is high but the pooled AUC is low, every ranking is
    good, but the level of the scores differs between queries (Optimizing What Matters, section 3: contrastive losses
    ignore such shifts).

    Args:
        positives, negatives: scores in any order; infinities are allowed.
        positive_queries, negative_queries: index of the query of each score, from 0.

    Returns:
        Values from 0 to 1; NaN for a query without a positive or without a negative.
    """
    above, above_starts = _by_query(positives, positive_queries, query_count, "scores of positives")
    below, below_starts = _by_query(negatives, negative_queries, query_count, "scores of negatives")
    return _auc_of_each(above, above_starts, below, below_starts)


def _by_query(scores: ndarray, queries: ndarray, query_count: int, where: str) -> tuple[ndarray, ndarray]:
    """Return scores as float64, sorted by query, and the index of each query's first score."""
    scores = scores_of(scores, where).astype(np.float64)
    check_queries(queries, scores, where, query_count)
    if (queries[1:] < queries[:-1]).any():
        order = np.argsort(queries, kind="stable")
        scores, queries = scores[order], queries[order]
    return scores, np.searchsorted(queries, np.arange(query_count + 1))


@numba.njit(cache=True)
def _auc_of_each(positives, positive_starts, negatives, negative_starts):  # type: ignore[no-untyped-def]
    areas = np.full(len(positive_starts) - 1, np.nan)
    for query in range(len(areas)):
        above = np.sort(positives[positive_starts[query] : positive_starts[query + 1]])
        below = np.sort(negatives[negative_starts[query] : negative_starts[query + 1]])
        if len(above) and len(below):
            areas[query] = doubled_placements(above, below).sum() / (2.0 * len(above) * len(below))
    return areas


@dataclass(frozen=True)
class AucInterval:
    """AUC with its standard error and confidence interval, all from 0 to 1.

    If fewer than two clusters have a positive, or fewer than two have a negative, the error and the bounds are NaN. If
    the pools do not overlap, only the error is NaN."""

    auc: float
    standard_error: float
    low: float
    high: float
    # The smaller of two numbers: that of clusters with a positive that is not above all negatives, and that of clusters
    # with a negative that is not below all positives. Without queries, each score is a cluster.
    misordered: int

    @property
    def note(self) -> str | None:
        """Sentence that says why the bounds are missing or uncertain; None if they are neither."""
        if self.low != self.low:
            return "There is no interval: it needs two queries with a relevant document and two with an irrelevant one."
        if self.auc in (0, 1):
            return "All pairs are in the same order. So the interval depends only on the number of queries."
        if self.misordered < FEW_MISORDERED:
            few = f"Queries with misordered pairs: {self.misordered}"
            return f"{few}. Below {FEW_MISORDERED}, the interval is uncertain."
        return None


def auc_interval(
    positives: Float[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    positive_queries: Int64[ndarray, " positives"] | None = None,
    negative_queries: Int64[ndarray, " negatives"] | None = None,
    confidence: float = 0.95,
) -> AucInterval:
    """Compute the AUC of two pools with its standard error and confidence interval.

    With queries, the error is that of Obuchowski (1997), and the scores of a query are a cluster. Without queries, it
    is that of DeLong, DeLong & Clarke-Pearson (1988). The placement of a positive is the fraction of negatives below
    it, V(p) = mean_n ([p > n] + [p = n] / 2). The placement of a negative, W(n), is the fraction of positives above
    it. Both have the mean θ, which is the AUC.

        independent scores:  var θ = var V / |P| + var W / |N|                                               (DeLong)
        clusters q of I:     var θ = S_P / |P| + S_N / |N| + 2 S_PN / |P||N|                              (Obuchowski)
            A_q = Σ_{p in q} (V(p) - θ),  B_q = Σ_{n in q} (W(n) - θ)
            S_P = I_P / ((I_P - 1) |P|) Σ A_q²,  S_N likewise,  S_PN = I / (I - 1) Σ A_q B_q

    I_P and I_N are the numbers of queries with a positive, and with a negative. Scores of one query are correlated. But
    DeLong's error assumes independent scores, so for a pool of many queries it is too small or too large.
    Placements are computed by merging sorted pools (Sun & Xu, 2014).

    The interval is computed on the logit, so it stays within 0 and 1 (Pepe, 2003), with Student's quantile. Near an AUC
    of 1, few clusters have all misordered pairs. Then the variance is as uncertain as if there were only these. So
    the degrees of freedom are an effective number of clusters, computed from the kurtosis of their contributions
    d_q = A_q / |P| + B_q / |N|:

        1 / df = Σ d_q⁴ / (Σ d_q²)² - 2 / I,   df from 1 to I - 1

    If the d_q are normally distributed, df is I. If m of many clusters have all misordered pairs, df is m.
    `benchmarks/interval_coverage.py` simulates how often the interval contains the true AUC.

    Without overlap of the pools, the variance is unknown. If none of I clusters has a misordered pair, at most a
    fraction of 1 - α^(1 / I) of all clusters has one: about 3 / I at 95 % (the rule of three). The AUC is assumed to
    differ from 1, or from 0, by at most this fraction.

    Args:
        positives, negatives: scores of any range and order; infinities are allowed.
        positive_queries, negative_queries: index of the query of each score, from 0. Pass both or neither.
        confidence: fraction of such intervals that contain the true value, above 0 and below 1.
    """
    check_confidence(confidence)
    if positive_queries is None or negative_queries is None:
        positive_queries = np.arange(len(positives))
        negative_queries = len(positives) + np.arange(len(negatives))
    of_positives, of_negatives, ours, theirs = _placements(
        positives, negatives, positive_queries, negative_queries, "AUC interval"
    )
    area = float(of_positives.mean())
    fewest = min(len(np.unique(ours)), len(np.unique(theirs)))
    misordered = min(len(np.unique(ours[of_positives < 1])), len(np.unique(theirs[of_negatives < 1])))
    nothing = float("nan")
    if fewest < 2:
        return AucInterval(area, nothing, nothing, nothing, misordered)
    if area in (0, 1):
        bound = (1 - confidence) ** (1 / fewest)
        low, high = (bound, 1.0) if area == 1 else (0.0, 1 - bound)
        return AucInterval(area, nothing, low, high, misordered)
    variance, freedom = _clustered(of_positives - area, ours, of_negatives - area, theirs)
    if not variance > 0:
        return AucInterval(area, nothing, nothing, nothing, misordered)
    error = float(np.sqrt(variance))
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error / (area * (1 - area))
    low, high = (float(expit(logit(area) + side * reach)) for side in (-1, 1))
    return AucInterval(area, error, low, high, misordered)


def _clustered(
    above: ndarray, positive_queries: ndarray, below: ndarray, negative_queries: ndarray
) -> tuple[float, float]:
    """Return Obuchowski's variance and its degrees of freedom. For one score per cluster, it is DeLong's variance."""
    count = int(max(positive_queries.max(), negative_queries.max())) + 1
    with_positive = np.bincount(positive_queries, minlength=count) > 0
    with_negative = np.bincount(negative_queries, minlength=count) > 0
    ours = np.bincount(positive_queries, above, count) / len(above)
    theirs = np.bincount(negative_queries, below, count) / len(below)

    def inflated(clusters: ndarray) -> float:
        return float(clusters.sum() / (clusters.sum() - 1))

    both = with_positive | with_negative
    variance = (
        inflated(with_positive) * float(ours @ ours)
        + inflated(with_negative) * float(theirs @ theirs)
        + 2 * inflated(both) * float(ours @ theirs)
    )
    squares = (ours + theirs) ** 2
    most = min(int(with_positive.sum()), int(with_negative.sum())) - 1
    if not squares.sum() > 0:
        return variance, float(most)
    fraction = float(squares @ squares) / float(squares.sum()) ** 2 - 2 / int(both.sum())
    return variance, float(np.clip(1 / fraction if fraction > 0 else most, 1, most))


def _placements(
    positives: ndarray, negatives: ndarray, positive_queries: ndarray, negative_queries: ndarray, where: str
) -> tuple[ndarray, ndarray, ndarray, ndarray]:
    """Return the placements V and W of both pools, and the query of each score."""
    if not len(positives) or not len(negatives):
        raise MetricInputError("a pool has no scores", where, "give positives and negatives")
    check_queries(positive_queries, positives, "scores of positives")
    check_queries(negative_queries, negatives, "scores of negatives")
    above, below = sort_pools(positives, negatives)
    of_positives = doubled_placements(above, below) / (2.0 * len(below))
    of_negatives = 1 - doubled_placements(below, above) / (2.0 * len(above))
    # Placements have the order of the sorted scores, so the queries are sorted in the same way.
    return of_positives, of_negatives, positive_queries[np.argsort(positives)], negative_queries[np.argsort(negatives)]


def auc_pseudo_values(
    positives: Float[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    positive_queries: Int64[ndarray, " positives"],
    negative_queries: Int64[ndarray, " negatives"],
    count: int,
) -> Float64[ndarray, " queries"]:
    """Compute a pseudo-value of the pooled AUC for each query, so that two systems can be compared query by query.

        θ_q = θ + I (A_q / |P| + B_q / |N|)

    A_q, B_q and θ are defined in `auc_interval`; I is the number of queries. The mean of the values is θ; a value may
    be below 0 or above 1. The variance of the mean is Obuchowski's (1997), except for factors I / (I - 1). So a paired
    test of the values of two systems on the same queries compares two correlated AUCs: it is DeLong's test with
    queries as units.

    Args:
        positives, negatives: scores of any range and order; infinities are allowed.
        positive_queries, negative_queries: index of the query of each score, from 0.
        count: number of queries, at least one.
    """
    of_positives, of_negatives, ours, theirs = _placements(
        positives, negatives, positive_queries, negative_queries, "AUC pseudo-values"
    )
    area = float(of_positives.mean())
    apart = np.bincount(ours, of_positives - area, count) / len(ours)
    apart = apart + np.bincount(theirs, of_negatives - area, count) / len(theirs)
    return area + count * apart


@dataclass(frozen=True)
class RocCurve:
    """Points of an ROC curve from (0, 0) to (1, 1); thresholds are descending."""

    # Lowest score that is classified as positive; the first threshold is infinite.
    thresholds: Float64[ndarray, " points"]
    false_positive_rate: Float64[ndarray, " points"]  # fraction of negatives at or above the threshold
    true_positive_rate: Float64[ndarray, " points"]  # fraction of positives at or above the threshold
    # `low`, `high`: bounds of the confidence band of the true positive rate.
    low: Float64[ndarray, " points"]
    high: Float64[ndarray, " points"]


def roc_curve(
    positives: Float[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    points: int = 1000,
    confidence: float = 0.95,
) -> RocCurve:
    """Compute the ROC curve at about `points` thresholds of each pool, with a simultaneous confidence band.

    Ten million scores have millions of thresholds, so the curve has only those at evenly spaced ranks of each pool.
    Both rates are exact at each of these thresholds. Between two of them, a rate grows by at most 1 / points plus the
    share of one score, except at equal scores; there the curve is a straight line anyway.

    The band contains the whole true curve with the given confidence, for any distributions. The error of the rate of a
    pool of n scores is at most d = sqrt(ln(2 / a) / 2n) at all thresholds at once (Dvoretzky, Kiefer & Wolfowitz, 1956,
    with the constant of Massart, 1990). Here a = 1 - sqrt(confidence), because this must be true for both pools. Around
    each point, both errors form a rectangle. The band is the union of the rectangles (Campbell, 1994). The band
    assumes independent scores. Scores of one query are correlated, so few scores per query make the band more accurate.

    Args:
        positives, negatives: scores of any range and order; infinities are allowed.
        points: number of thresholds of each pool, at least 1.
        confidence: confidence of the band, above 0 and below 1.
    """
    check_confidence(confidence)
    above, below = sort_pools(positives, negatives)
    # Keep ranks that are at most `length / points + 1` apart, including the first and the last.
    ranks = [np.linspace(0, len(pool) - 1, min(points, len(pool) - 1) + 1).astype(np.int64) for pool in (above, below)]
    thresholds = np.unique(np.concatenate([above[ranks[0]], below[ranks[1]]]))[::-1]
    true = np.r_[0, 1 - np.searchsorted(above, thresholds) / len(above)]
    false = np.r_[0, 1 - np.searchsorted(below, thresholds) / len(below)]
    aside, upward = (float(np.sqrt(np.log(2 / (1 - np.sqrt(confidence))) / (2 * len(pool)))) for pool in (below, above))
    # Find the corners of each rectangle. For a corner between two thresholds, use the one farther from the point.
    lowest = np.maximum(np.searchsorted(false, false - aside, side="left") - 1, 0)
    highest = np.minimum(np.searchsorted(false, false + aside, side="right"), len(false) - 1)
    low, high = np.maximum(true[lowest] - upward, 0), np.minimum(true[highest] + upward, 1)
    return RocCurve(np.r_[np.inf, thresholds.astype(np.float64)], false, true, low, high)
