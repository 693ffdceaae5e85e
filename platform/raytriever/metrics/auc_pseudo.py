"""A value a query for the pooled AUC, which has none of its own, so that two systems can be compared query by query.

    θ_q = θ + I (A_q / |P| + B_q / |N|)

with the clusters' sums A_q and B_q of `auc_interval.py` over I queries. Their mean is θ, and the variance of that mean
is Obuchowski's (1997) up to its factors I / (I - 1); that of the mean of differences of two systems on the same queries
is therefore the one of the paired test of two correlated AUCs, DeLong's with queries for units.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.auc import sorted_pools
from raytriever.metrics.auc_interval import places
from raytriever.metrics.inputs import MetricInputError, check_queries


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
    above, below = sorted_pools(positives, negatives)
    of_positives = places(above, below) / (2.0 * len(below))
    of_negatives = 1 - places(below, above) / (2.0 * len(above))
    area = float(of_positives.mean())
    # Placements stand in the order of the sorted scores; so must the queries.
    ours, theirs = positive_queries[np.argsort(positives)], negative_queries[np.argsort(negatives)]
    apart = np.bincount(ours, of_positives - area, count) / len(above)
    apart = apart + np.bincount(theirs, of_negatives - area, count) / len(below)
    return area + count * apart
