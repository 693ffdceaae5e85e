"""Top answers of a split's queries, and thresholds that are chosen for what a person sees.

The top answer of a query is its best-scoring document. A threshold shows it or says that there is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, check_queries, scores_of

TopAim = Literal["top_precision", "answered", "f1"]
# A precision of the top answers is one of at least as many shown answers: Wilson's interval of 27 of 30 is 0.74 to
# 0.97, and a single right answer would have any precision.
FEWEST_ANSWERED = 30


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

    Args:
        scores: its score; -inf for a query without a scored document.
        right: whether it is relevant. A best score that a relevant and another document share does not count.
    """

    scores: Float64[ndarray, " queries"]
    right: Bool[ndarray, " queries"]


@dataclass(frozen=True)
class TopThreshold:
    """Threshold of the top answers, and the value of its aim on the split on which it was chosen.

    Args:
        score: lowest score of a shown answer; infinite if the aim is out of reach.
        value: value of the aim there; if it is out of reach, the best there is, or NaN without one.
    """

    score: float
    value: float


def ranked_pairs(
    pools: ScoredPools, ranks: range
) -> tuple[Float64[ndarray, " pairs"], Bool[ndarray, " pairs"], Int64[ndarray, " pairs"]]:
    """Return the pairs at some ranks of each query's documents: score, relevance and query.

    Relevant documents come last among equal scores.

    Args:
        pools: pooled scores with their queries.
        ranks: ranks from 0, the best document.

    Raises:
        MetricInputError: a score is NaN or has no query.
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
    """Return the top answer of each query of a split.

    Args:
        pools: pooled scores with their queries.

    Raises:
        MetricInputError: a score is NaN or has no query.
    """
    scores, relevant, queries = ranked_pairs(pools, range(1))
    count = int(queries.max(initial=-1)) + 1
    best, right = np.full(count, -np.inf), np.zeros(count, bool)
    best[queries], right[queries] = scores, relevant
    return TopAnswers(best, right)


def choose_top_threshold(answers: TopAnswers, aim: TopAim, wanted: float | None) -> TopThreshold:
    """Choose one threshold for the top answers of all queries.

        precision(t) = right(t) / shown(t),   answered(t) = shown(t) / queries
        F1(t) = 2 right(t) / (shown(t) + queries)

    shown(t) are the queries whose top answer scores at least t, and right(t) those of them whose top answer is
    relevant. F1 is that of the decision for queries that all have an answer: its recall is right(t) / queries.

    - `top_precision`: the lowest threshold with the wanted precision among at least 30 shown answers.
    - `answered`: the highest threshold at which the wanted share of the queries is answered.
    - `f1`: the highest threshold of the highest F1.

    Args:
        answers: top answers of a split.
        aim: `top_precision`, `answered` or `f1`.
        wanted: wanted precision or share, above 0 and at most 1; None for `f1`.
    """
    scores = np.unique(answers.scores[np.isfinite(answers.scores)])
    right = np.sort(answers.scores[answers.right])
    shown = len(answers.scores) - np.searchsorted(np.sort(answers.scores), scores)
    rights = len(right) - np.searchsorted(right, scores)
    values = {
        "top_precision": np.where(shown >= FEWEST_ANSWERED, rights / shown, np.nan),
        "answered": shown / max(len(answers.scores), 1),
        "f1": 2 * rights / (shown + len(answers.scores)),
    }[aim]
    best = float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")
    enough = np.flatnonzero(values >= (best if wanted is None else wanted))
    if not len(enough) or best == 0:
        return TopThreshold(float("inf"), best)
    index = int(enough[0] if aim == "top_precision" else enough[-1])
    return TopThreshold(float(scores[index]), float(values[index]))


def queries_of(queries: Int64[ndarray, " scores"] | None, scores: ndarray) -> Int64[ndarray, " scores"]:
    """Return the queries of scores, checked."""
    if queries is None:
        raise MetricInputError("the queries of scores are unknown", "top answers", "give the query of each score")
    check_queries(queries, scores, "top answers")
    return queries
