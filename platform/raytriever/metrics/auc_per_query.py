"""The AUC of each query's own scores, which says nothing of whether scores of different queries compare.

    AUC_q = (1 / |P_q||N_q|) Σ_{p in P_q} Σ_{n in N_q} ([p > n] + [p = n] / 2)

Beside the pooled AUC it tells where a loss comes from: high here and low there is a good ranking of every query whose
scores have a level of their own (Optimizing What Matters, section 3: score shifts by query, to which contrastive
losses are blind).
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.auc import merged_pairs
from raytriever.metrics.inputs import check_queries, scores_of


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
            found[query] = merged_pairs(above, below) / (2.0 * len(above) * len(below))
    return found
