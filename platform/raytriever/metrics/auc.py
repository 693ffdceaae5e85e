"""Area under the ROC curve: of pooled scores, of each query, with a confidence interval, and as pseudo-values.

The AUC is the Mann-Whitney U statistic, exact, ties by mid-rank. Intervals and pseudo-values take the scores of one
query as a cluster (Obuchowski, 1997). Pools beyond memory: `streaming.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray
from scipy.special import expit, logit, stdtrit

from raytriever.metrics.inputs import MetricInputError, check_confidence, check_queries, scores_of

# Twice the number of pairs is counted in 64 bits.
MOST_PAIRS = 2**63


def pooled_auc(positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]) -> float:
    """Compute the area under the ROC curve (AUC) of two pools of scores.

    The AUC is the share of pairs in which the positive has the higher score; a tie counts half. It is exact.

    Args:
        positives: scores of relevant pairs, of all queries together, in any order; infinities are allowed.
        negatives: scores of other pairs. Where one pool is float64, float32 scores of the other are compared with it as
            they are.

    Returns:
        The AUC, 0 to 1; NaN if a pool is empty.

    Raises:
        MetricInputError: a score is NaN, or there are 2^63 pairs or more.

    Example:
        >>> rt.metrics.pooled_auc(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
        0.75
    """
    if not len(positives) or not len(negatives):
        return float("nan")
    return int(count_ordered_pairs(*sort_pools(positives, negatives))) / (2 * len(positives) * len(negatives))


def sort_pools(positives: ndarray, negatives: ndarray) -> tuple[ndarray, ndarray]:
    """Both pools checked, ascending, and of one type."""
    above, below = scores_of(positives, "scores of positives"), scores_of(negatives, "scores of negatives")
    check_pairs(len(above), len(below))
    shared = np.promote_types(above.dtype, below.dtype)
    return np.sort(above.astype(shared, copy=False)), np.sort(below.astype(shared, copy=False))


def check_pairs(positives: int, negatives: int) -> None:
    """Raise `MetricInputError` where pairs cannot be counted."""
    if positives * negatives >= MOST_PAIRS:
        raise MetricInputError(
            f"{positives} x {negatives} scores", "AUC", "pools of fewer than 2^63 pairs can be counted"
        )


@numba.njit(cache=True)
def count_ordered_pairs(positives, negatives):  # type: ignore[no-untyped-def]
    """Twice the number of pairs in order plus the number of ties, from ascending pools."""
    total = np.uint64(0)
    below = not_above = 0
    for score in positives:
        while below < len(negatives) and negatives[below] < score:
            below += 1
        not_above = max(below, not_above)
        while not_above < len(negatives) and negatives[not_above] <= score:
            not_above += 1
        total += np.uint64(below + not_above)
    return total


def auc_per_query(
    positives: Float[ndarray, " positives"],
    positive_queries: Int64[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    negative_queries: Int64[ndarray, " negatives"],
    query_count: int,
) -> Float64[ndarray, " queries"]:
    """The AUC of each query, 0 to 1, a tie counting half; NaN where a query has no positive or no negative.

    Args:
        positives, negatives: scores in any order, infinities allowed.
        positive_queries, negative_queries: to which query each belongs, from 0.
        query_count: how many queries there are.

    Raises:
        MetricInputError: a score is NaN, or scores do not each name a query.
    """
    above, above_starts = _by_query(positives, positive_queries, query_count, "scores of positives")
    below, below_starts = _by_query(negatives, negative_queries, query_count, "scores of negatives")
    return _auc_of_each(above, above_starts, below, below_starts)


def _by_query(scores: ndarray, queries: ndarray, query_count: int, where: str) -> tuple[ndarray, ndarray]:
    """Scores as float64, query by query, and where each query's begin."""
    scores = scores_of(scores, where).astype(np.float64)
    check_queries(queries, scores, where, query_count)
    if (queries[1:] < queries[:-1]).any():
        order = np.argsort(queries, kind="stable")
        scores, queries = scores[order], queries[order]
    return scores, np.searchsorted(queries, np.arange(query_count + 1))


@numba.njit(cache=True)
def _auc_of_each(positives, positive_starts, negatives, negative_starts):  # type: ignore[no-untyped-def]
    found = np.full(len(positive_starts) - 1, np.nan)
    for query in range(len(found)):
        above = np.sort(positives[positive_starts[query] : positive_starts[query + 1]])
        below = np.sort(negatives[negative_starts[query] : negative_starts[query + 1]])
        if len(above) and len(below):
            found[query] = count_ordered_pairs(above, below) / (2.0 * len(above) * len(below))
    return found


# With fewer misordered clusters the interval may hold the true AUC less often than it says, or be far too wide.
FEW_MISORDERED = 10


@dataclass(frozen=True)
class AucInterval:
    """An AUC, its standard error, and the bounds of its confidence interval, all from 0 to 1.

    The error is NaN where nothing can be said of it: fewer than two positives, negatives or clusters, or pools that lie
    wholly apart. The bounds are NaN where there are fewer than two positives, negatives or clusters.

    Args:
        misordered: the fewer of the clusters with a positive that is not above all negatives, and of those with a
            negative that is not below all positives; scores where no queries are given.
    """

    auc: float
    standard_error: float
    low: float
    high: float
    misordered: int

    @property
    def note(self) -> str | None:
        """What is to be known of the bounds where they are none or uncertain, as a sentence."""
        if self.low != self.low:
            return "There is no interval: it takes two queries with a relevant document, and two with another one."
        if self.auc in (0, 1):
            return "All pairs are in one order. The interval is what so many queries without another order leave open."
        if self.misordered < FEW_MISORDERED:
            few = f"Misordered pairs are of {self.misordered} queries only"
            return f"{few}. Below {FEW_MISORDERED} the interval is uncertain."
        return None


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
    above, below = sort_pools(positives, negatives)
    of_positives = places(above, below) / (2.0 * len(below))
    of_negatives = 1 - places(below, above) / (2.0 * len(above))
    area = float(of_positives.mean())
    if positive_queries is None or negative_queries is None:
        ours, theirs = np.arange(len(above)), len(above) + np.arange(len(below))
    else:
        check_queries(positive_queries, positives, "scores of positives")
        check_queries(negative_queries, negatives, "scores of negatives")
        # Placements stand in the order of the sorted scores; so must the queries.
        ours, theirs = positive_queries[np.argsort(positives)], negative_queries[np.argsort(negatives)]
    fewest = min(len(np.unique(ours)), len(np.unique(theirs)))
    misordered = min(len(np.unique(ours[of_positives < 1])), len(np.unique(theirs[of_negatives < 1])))
    nothing = float("nan")
    if fewest < 2:
        return AucInterval(area, nothing, nothing, nothing, misordered)
    if area in (0, 1):
        known = (1 - confidence) ** (1 / fewest)
        low, high = (known, 1.0) if area == 1 else (0.0, 1 - known)
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
    """Obuchowski's variance, and its degrees of freedom; DeLong's where each score is a cluster."""
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
    share = float(squares @ squares) / float(squares.sum()) ** 2 - 2 / int(both.sum())
    return variance, float(np.clip(1 / share if share > 0 else most, 1, most))


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


def auc_pseudo_values(
    positives: Float[ndarray, " positives"],
    negatives: Float[ndarray, " negatives"],
    positive_queries: Int64[ndarray, " positives"],
    negative_queries: Int64[ndarray, " negatives"],
    count: int,
) -> Float64[ndarray, " queries"]:
    """Values whose mean is the AUC; one of them may lie outside 0 and 1.

    Args:
        positives, negatives: scores of any range and order, infinities allowed.
        positive_queries, negative_queries: to which query each belongs, from 0.
        count: of queries, at least one.

    Raises:
        MetricInputError: a pool is empty, a score is NaN, or not every score of both pools names a query.
    """
    if not len(positives) or not len(negatives):
        raise MetricInputError("a pool without scores", "AUC pseudo-values", "give positives and negatives")
    check_queries(positive_queries, positives, "scores of positives")
    check_queries(negative_queries, negatives, "scores of negatives")
    above, below = sort_pools(positives, negatives)
    of_positives = places(above, below) / (2.0 * len(below))
    of_negatives = 1 - places(below, above) / (2.0 * len(above))
    area = float(of_positives.mean())
    # Placements stand in the order of the sorted scores; so must the queries.
    ours, theirs = positive_queries[np.argsort(positives)], negative_queries[np.argsort(negatives)]
    apart = np.bincount(ours, of_positives - area, count) / len(above)
    apart = apart + np.bincount(theirs, of_negatives - area, count) / len(below)
    return area + count * apart
