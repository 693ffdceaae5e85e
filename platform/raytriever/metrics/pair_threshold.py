"""Thresholds of scores of pairs of a query and a document: chosen on one split, and checked on another split.

A pair counts as relevant if its score is at or above the threshold. `answering` has the thresholds of the decision
whether a question is shown its best document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy import ndarray

from raytriever.metrics.answer_threshold import Threshold, find_threshold
from raytriever.metrics.auc import sort_pools
from raytriever.metrics.intervals import Proportion, wilson_by_query
from raytriever.metrics.metric_inputs import MetricInputError, check_queries, scores_of

PairAim = Literal["precision", "recall"]


@dataclass(frozen=True)
class ScoredPools:
    """Pooled scores of a split, and the index of the query of each, from 0, if it is known."""

    positives: Float[ndarray, " positives"]
    negatives: Float[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"] | None = None
    negative_queries: Int64[ndarray, " negatives"] | None = None


def ranked_relevance(pools: ScoredPools, count: int, depth: int) -> Bool[ndarray, "queries depth"]:
    """Return for each of `count` queries whether its `depth` best documents are relevant, best first.

    Relevant documents come last among equal scores, so a best score that a relevant and another document share is not
    right. Ranks without a document are not relevant.
    """
    positives = scores_of(pools.positives, "scores of positives")
    negatives = scores_of(pools.negatives, "scores of negatives")
    scores = np.concatenate([negatives, positives])
    queries = np.concatenate(
        [queries_of(pools.negative_queries, negatives), queries_of(pools.positive_queries, positives)]
    )
    is_positive = np.arange(len(scores)) >= len(negatives)
    order = np.lexsort((is_positive, -scores, queries))
    queries = queries[order]
    ranks = np.arange(len(order)) - np.searchsorted(queries, queries)
    relevant = np.zeros((count, depth), bool)
    within = ranks < depth
    relevant[queries[within], ranks[within]] = is_positive[order][within]
    return relevant


def queries_of(queries: Int64[ndarray, " scores"] | None, scores: ndarray) -> Int64[ndarray, " scores"]:
    """Return the queries of scores, checked."""
    if queries is None:
        raise MetricInputError("the queries of scores are unknown", "top answers", "give the query of each score")
    check_queries(queries, scores, "top answers")
    return queries


def choose_pair_threshold(pools: ScoredPools, aim: PairAim, wanted: float) -> Threshold:
    """Choose one threshold for the scores of all pairs, for a wanted precision or recall.

        precision(t) = |{p >= t}| / (|{p >= t}| + |{n >= t}|),   recall(t) = |{p >= t}| / |P|

    Equal scores count together, and only scores that occur are thresholds. Of a precision it is the lowest threshold
    that has it, which has the highest recall. It may fall below the wanted value between such thresholds. Of a recall
    it is the highest threshold that has it. Precision depends on the number of scored negatives per positive, so a
    threshold holds for pools made in one way.

    Args:
        pools: pooled scores, of at least one positive.
        wanted: above 0 and at most 1.
    """
    if not 0 < wanted <= 1:
        raise MetricInputError(f"a {aim} of {wanted}", "threshold", "give a precision or recall above 0 and at most 1")
    scores, right, shown = _points(pools.positives, pools.negatives)
    values = right / (shown if aim == "precision" else len(pools.positives))
    return find_threshold(aim, wanted, scores, values, lowest=aim == "precision")


def best_f1_threshold(
    positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]
) -> tuple[float, float, float]:
    """Choose the threshold with the highest F1 of pairs, and return it with precision and recall at it.

    F1 is 2 precision recall / (precision + recall). Of several such scores it is the highest.
    """
    scores, true, accepted = _points(positives, negatives)
    f1 = 2 * true / (accepted + len(positives))  # one division of integers: equal F1 are equal numbers
    best = len(f1) - 1 - int(f1[::-1].argmax())
    return float(scores[best]), float(true[best] / accepted[best]), float(true[best] / len(positives))


def _points(positives: ndarray, negatives: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Return every score that occurs, ascending, with the numbers of positives and of all scores from it on."""
    if not len(positives):
        raise MetricInputError("no positives", "threshold", "choose it on a split that has judged documents")
    above, below = sort_pools(positives, negatives)
    scores = np.unique(np.concatenate([above, below]))
    true = len(above) - np.searchsorted(above, scores)
    return scores, true, true + len(below) - np.searchsorted(below, scores)


@dataclass(frozen=True)
class PairsAchieved:
    """Relevant pairs of all accepted ones, and accepted ones of all relevant pairs."""

    precision: Proportion
    recall: Proportion


def achieve_pairs(pools: ScoredPools, score: float) -> PairsAchieved:
    """Compute the shares of pairs that a threshold achieves on a split.

    Pairs of one query are not independent: the intervals are Wilson's for an effective number of pairs
    (`intervals.wilson_by_query`).
    """
    if not len(pools.positives):
        raise MetricInputError("no positives", "checking split", "check on a split that has judged documents")
    positives = scores_of(pools.positives, "scores of positives")
    negatives = scores_of(pools.negatives, "scores of negatives")
    true, false = positives >= score, negatives >= score
    ours, theirs = queries_of(pools.positive_queries, true), queries_of(pools.negative_queries, false)
    count = int(max(ours.max(), theirs.max(initial=0))) + 1
    parts = np.bincount(ours[true], minlength=count)
    wholes = parts + np.bincount(theirs[false], minlength=count)
    all_relevant = np.bincount(ours, minlength=count)
    relevant = int(true.sum())
    return PairsAchieved(
        Proportion(relevant, relevant + int(false.sum()), *wilson_by_query(parts, wholes)),
        Proportion(relevant, len(true), *wilson_by_query(parts, all_relevant)),
    )
