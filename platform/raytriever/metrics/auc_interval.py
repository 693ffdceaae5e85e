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
Placements are found by merging sorted pools (Sun & Xu, 2014).

The interval is taken on the logit, so that it stays within 0 and 1 (Pepe, 2003), with Student's quantile. Near an AUC
of 1 few clusters hold all misordered pairs, and the variance is as uncertain as if there were no others. So the degrees
of freedom are an effective number of clusters, from the kurtosis of their shares d_q = A_q / |P| + B_q / |N|:

    1 / df = Σ d_q⁴ / (Σ d_q²)² - 2 / I,   df from 1 to I - 1

I of them for normal shares, m where m clusters of many hold them all. `benchmarks/interval_coverage.py` simulates how
often the interval holds the true AUC.

Where the pools lie wholly apart there is no variance to estimate. From I clusters without a misordered pair it follows
that at most a share of 1 - α^(1 / I) of all clusters has one, about 3 / I at 95 % (the rule of three). The AUC is taken
to be at most so far from 1, or from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray
from scipy.special import expit, logit, stdtrit

from raytriever.metrics.auc import sorted_pools
from raytriever.metrics.inputs import MetricInputError, check_confidence, check_queries

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
    above, below = sorted_pools(positives, negatives)
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
