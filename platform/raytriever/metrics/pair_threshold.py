"""Thresholds for the scores of pairs of a query and a document, chosen on one split and checked on another.

A pair is classified as relevant if its score is at or above the threshold. The thresholds of `answer_threshold` differ:
they decide whether the best document of a question is shown."""

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

PairTarget = Literal["precision", "recall"]


@dataclass(frozen=True)
class ScoredPools:
    """Pooled scores of a split and, if known, the index of each score's query, counted from 0."""

    positives: Float[ndarray, " positives"]
    negatives: Float[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"] | None = None
    negative_queries: Int64[ndarray, " negatives"] | None = None


def ranked_relevance(pools: ScoredPools, count: int, depth: int) -> Bool[ndarray, "queries depth"]:
    """Return, for each of `count` queries, whether its `depth` best documents are relevant, best first.

    Among equal scores, relevant documents come last. So if a relevant and another document have the best score, the
    best document is not relevant. Ranks without a document are not relevant."""
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
    """Return the queries of scores. Raise `MetricInputError` if they are unknown or do not fit the scores."""
    if queries is None:
        raise MetricInputError("the queries of scores are unknown", "top answers", "give the query of each score")
    check_queries(queries, scores, "top answers")
    return queries


def choose_pair_threshold(pools: ScoredPools, target: PairTarget, wanted: float) -> Threshold:
    """Choose one threshold for the scores of all pairs, for a target precision or recall.

        precision(t) = |{p >= t}| / (|{p >= t}| + |{n >= t}|),   recall(t) = |{p >= t}| / |P|

    Pairs of equal score are accepted together, and every threshold is the score of a pair. For a target precision, the
    lowest threshold that reaches it is chosen, because it has the highest recall. A higher threshold may have a lower
    precision. For a target recall, the highest threshold that reaches it is chosen. Precision depends on the number of
    scored negatives per positive, so a threshold is valid only for pools that are made in the same way.

    Args:
        pools: pooled scores with at least one positive.
        wanted: target value, above 0 and at most 1.
    """
    if not 0 < wanted <= 1:
        raise MetricInputError(f"the target {target} is {wanted}", "threshold", "give a value above 0 and at most 1")
    scores, right, shown = _points(pools.positives, pools.negatives)
    values = right / (shown if target == "precision" else len(pools.positives))
    return find_threshold(target, wanted, scores, values, lowest=target == "precision")


def best_f1_threshold(
    positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]
) -> tuple[float, float, float]:
    """Return the threshold with the highest F1 of pairs, and its precision and recall. F1 is 2 precision recall /
    (precision + recall). Of several thresholds with the same F1, the highest is chosen."""
    scores, true, accepted = _points(positives, negatives)
    f1 = 2 * true / (accepted + len(positives))  # a single division of integers, so that equal F1 give equal floats
    best = len(f1) - 1 - int(f1[::-1].argmax())
    return float(scores[best]), float(true[best] / accepted[best]), float(true[best] / len(positives))


def _points(positives: ndarray, negatives: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Return the distinct scores, ascending, and the numbers of positives and of pairs at or above each score."""
    if not len(positives):
        raise MetricInputError("there are no positives", "threshold", "choose on a split with relevant documents")
    above, below = sort_pools(positives, negatives)
    scores = np.unique(np.concatenate([above, below]))
    true = len(above) - np.searchsorted(above, scores)
    return scores, true, true + len(below) - np.searchsorted(below, scores)


@dataclass(frozen=True)
class PairsAchieved:
    """Precision (fraction of accepted pairs that are relevant) and recall (fraction of relevant pairs that are
    accepted)."""

    precision: Proportion
    recall: Proportion


def achieve_pairs(pools: ScoredPools, score: float) -> PairsAchieved:
    """Compute the precision and recall of pairs that a threshold achieves on a split. Pairs of one query are not
    independent: the intervals are Wilson's for an effective number of pairs (`intervals.wilson_by_query`)."""
    if not len(pools.positives):
        raise MetricInputError("there are no positives", "checking split", "check on a split with relevant documents")
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
