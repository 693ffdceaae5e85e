"""Pooled scores of a split, and the top answer of each query: its best-scoring document."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, check_queries, scores_of


@dataclass(frozen=True)
class ScoredPools:
    """Pooled scores of a split, and the index of the query of each, from 0, if it is known."""

    positives: Float[ndarray, " positives"]
    negatives: Float[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"] | None = None
    negative_queries: Int64[ndarray, " negatives"] | None = None


@dataclass(frozen=True)
class TopAnswers:
    """Top answer of each query of a split.

    A query without a scored document has the score -inf. A best score that a relevant and another document share is not
    right.
    """

    scores: Float64[ndarray, " queries"]
    right: Bool[ndarray, " queries"]


def ranked_pairs(
    pools: ScoredPools, ranks: range
) -> tuple[Float64[ndarray, " pairs"], Bool[ndarray, " pairs"], Int64[ndarray, " pairs"]]:
    """Return the pairs at some ranks of each query's documents: score, relevance and query.

    The best document has rank 0. Relevant documents come last among equal scores.
    """
    positives = scores_of(pools.positives, "scores of positives")
    negatives = scores_of(pools.negatives, "scores of negatives")
    of_positives = queries_of(pools.positive_queries, positives)
    of_negatives = queries_of(pools.negative_queries, negatives)
    scores = np.concatenate([negatives, positives]).astype(np.float64)
    queries = np.concatenate([of_negatives, of_positives])
    order = np.lexsort((np.arange(len(scores)) >= len(negatives), -scores, queries))
    starts = np.searchsorted(queries[order], queries[order])
    kept = order[np.isin(np.arange(len(order)) - starts, ranks)]
    return scores[kept], kept >= len(negatives), queries[kept]


def top_answers(pools: ScoredPools) -> TopAnswers:
    """Return the top answer of each query of a split."""
    scores, relevant, queries = ranked_pairs(pools, range(1))
    count = int(queries.max(initial=-1)) + 1
    best, right = np.full(count, -np.inf), np.zeros(count, bool)
    best[queries], right[queries] = scores, relevant
    return TopAnswers(best, right)


def queries_of(queries: Int64[ndarray, " scores"] | None, scores: ndarray) -> Int64[ndarray, " scores"]:
    """Return the queries of scores, checked."""
    if queries is None:
        raise MetricInputError("the queries of scores are unknown", "top answers", "give the query of each score")
    check_queries(queries, scores, "top answers")
    return queries
