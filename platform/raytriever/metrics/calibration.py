"""Score thresholds: chosen on one split for a wanted precision or recall, and checked on another split.

A check reports how many queries have an answer, how often the best answer is relevant, and precision and recall of
pairs, each with an interval. The transfer error and the expected calibration error compare both splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from raytriever.metrics.auc import sort_pools
from raytriever.metrics.inputs import MetricInputError, check_queries, scores_of
from raytriever.metrics.proportions import wilson, wilson_by_query

Aim = Literal["precision", "recall"]


@dataclass(frozen=True)
class Threshold:
    """A threshold and what it gives on the pools it was chosen on.

    Args:
        aim, wanted: what was wanted, and how much of it, above 0 to 1.
        score: a document is taken for relevant from here on; infinite where the aim is out of reach.
        reached: whether any threshold has what is wanted.
        precision, recall: at the threshold; out of reach, at that of the best precision.
    """

    aim: Aim
    wanted: float
    score: float
    reached: bool
    precision: float
    recall: float

    @property
    def achieved(self) -> float:
        """The precision or recall, whichever was wanted."""
        return self.precision if self.aim == "precision" else self.recall


def choose_threshold(
    positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"], aim: Aim, wanted: float
) -> Threshold:
    """The threshold for a wanted precision or recall, by the rules above.

    Args:
        positives, negatives: pooled scores of any range and order.
        aim: `precision` or `recall`.
        wanted: above 0, at most 1.

    Raises:
        MetricInputError: a score is NaN, there is no positive, or the wish is out of range.
    """
    if aim not in ("precision", "recall") or not 0 < wanted <= 1:
        raise MetricInputError(f"a {aim} of {wanted}", "threshold", "want a precision or recall above 0, at most 1")
    if not len(positives):
        raise MetricInputError("no positives", "threshold", "choose it on a split that has judged documents")
    above, below = sort_pools(positives, negatives)
    scores = np.unique(np.concatenate([above, below]))
    true = len(above) - np.searchsorted(above, scores)
    taken = true + len(below) - np.searchsorted(below, scores)
    precisions, recalls = true / taken, true / len(above)
    enough = np.flatnonzero((precisions if aim == "precision" else recalls) >= wanted)
    if not len(enough):
        best = int(precisions.argmax())
        return Threshold(aim, wanted, float("inf"), False, float(precisions[best]), float(recalls[best]))
    place = int(enough[0] if aim == "precision" else enough[-1])
    return Threshold(aim, wanted, float(scores[place]), True, float(precisions[place]), float(recalls[place]))


@dataclass(frozen=True)
class ScoredPools:
    """The pooled scores of a split, and, where known, to which of its queries each belongs, from 0."""

    positives: Float[ndarray, " positives"]
    negatives: Float[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"] | None = None
    negative_queries: Int64[ndarray, " negatives"] | None = None


@dataclass(frozen=True)
class Share:
    """A share with the bounds of its confidence interval; NaN, from 0 to 1, of nothing.

    Args:
        part, whole: the cases that count, and all cases.
        low, high: the bounds.
    """

    part: int
    whole: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """part / whole."""
        return self.part / self.whole if self.whole else float("nan")


@dataclass(frozen=True)
class Achieved:
    """What taking every pair that scores at or above a threshold gives on a split.

    Args:
        coverage: the queries with at least one such pair, of all queries; None where scores name no queries.
        top_precision: the queries whose best-scoring document is relevant, of those with such a pair. A best score that
            a relevant and another document share does not count. None where scores name no queries.
        precision: the relevant pairs among such pairs.
        recall: the relevant pairs that are such pairs, of all relevant pairs.
    """

    coverage: Share | None
    top_precision: Share | None
    precision: Share
    recall: Share


@dataclass(frozen=True)
class CalibrationRow:
    """One line of the table: a threshold and what it achieves on the checking split.

    Args:
        threshold: with what was wanted, and what it achieves on the choosing split.
        achieved: on the checking split; None where the aim was out of reach.
    """

    threshold: Threshold
    achieved: Achieved | None

    @property
    def wanted(self) -> Share | None:
        """The precision or recall on the checking split, whichever was wanted."""
        if self.achieved is None:
            return None
        return self.achieved.precision if self.threshold.aim == "precision" else self.achieved.recall

    @property
    def checked(self) -> float:
        """Its value; NaN for a precision where no score reaches the threshold, and where the aim was out of reach."""
        return self.wanted.value if self.wanted else float("nan")

    @property
    def low(self) -> float:
        """The lower bound of `checked`; NaN where it is."""
        return self.wanted.low if self.wanted and self.wanted.whole else float("nan")

    @property
    def high(self) -> float:
        """The upper bound of `checked`; NaN where it is."""
        return self.wanted.high if self.wanted and self.wanted.whole else float("nan")


def calibrate(
    choosing: ScoredPools, checking: ScoredPools, aims: Iterable[tuple[Aim, float]], confidence: float = 0.95
) -> list[CalibrationRow]:
    """The table: for each wanted precision or recall a threshold, and what it achieves on the other split.

    Args:
        choosing, checking: two splits, whose pools were made in the same way.
        aims: `("precision", 0.9)` and the like.
        confidence: of the intervals.

    Raises:
        MetricInputError: a score is NaN, a split has no positive, or an aim is out of range.
    """
    rows = []
    for aim, wanted in aims:
        threshold = choose_threshold(choosing.positives, choosing.negatives, aim, wanted)
        achieved = achieve(checking, threshold.score, confidence) if threshold.reached else None
        rows.append(CalibrationRow(threshold, achieved))
    return rows


def achieve(pools: ScoredPools, score: float, confidence: float = 0.95) -> Achieved:
    """What a threshold achieves on a split.

    Args:
        pools: of that split.
        score: pairs that score so high or higher are taken.
        confidence: of the intervals.

    Raises:
        MetricInputError: a score is NaN, or there is no positive.
    """
    if not len(pools.positives):
        raise MetricInputError("no positives", "checking split", "check on a split that has judged documents")
    positives = scores_of(pools.positives, "scores of positives")
    negatives = scores_of(pools.negatives, "scores of negatives")
    true, false = positives >= score, negatives >= score
    taken, relevant = int(true.sum() + false.sum()), int(true.sum())
    if pools.positive_queries is None or pools.negative_queries is None:
        return Achieved(
            None, None, _independent(relevant, taken, confidence), _independent(relevant, len(true), confidence)
        )
    check_queries(pools.positive_queries, true, "checking split")
    check_queries(pools.negative_queries, false, "checking split")
    count = int(max(pools.positive_queries.max(), pools.negative_queries.max(initial=0))) + 1
    parts = np.bincount(pools.positive_queries[true], minlength=count)
    wholes = parts + np.bincount(pools.negative_queries[false], minlength=count)
    best_positive, best_negative = np.full(count, -np.inf), np.full(count, -np.inf)
    np.maximum.at(best_positive, pools.positive_queries, positives)
    np.maximum.at(best_negative, pools.negative_queries, negatives)
    answered = wholes > 0
    right = answered & (best_positive >= score) & (best_positive > best_negative)
    all_relevant = np.bincount(pools.positive_queries, minlength=count)
    return Achieved(
        coverage=_independent(int(answered.sum()), count, confidence),
        top_precision=_independent(int(right.sum()), int(answered.sum()), confidence),
        precision=Share(relevant, taken, *wilson_by_query(parts, wholes, confidence)),
        recall=Share(relevant, len(true), *wilson_by_query(parts, all_relevant, confidence)),
    )


def _independent(part: int, whole: int, confidence: float) -> Share:
    return Share(part, whole, *wilson(part, whole, confidence))


def transfer_error(rows: Sequence[CalibrationRow]) -> float:
    """The mean of |achieved where chosen - achieved where checked| over the rows with both; NaN without any."""
    apart = [abs(row.threshold.achieved - row.checked) for row in rows if row.checked == row.checked]
    return float(np.mean(apart)) if apart else float("nan")


def expected_calibration_error(choosing: ScoredPools, checking: ScoredPools, bins: int = 15) -> float:
    """The expected calibration error, 0 to 1, of taking a score's share of positives on one split for its chance.

    Equal scores share a bin, so that there may be fewer bins; scores beyond the choosing split's are in its end bins.

    Raises:
        MetricInputError: a score is NaN, a split has none, or there are no bins.
    """
    pools = [scores_of(pool, "scores") for pool in (choosing.positives, choosing.negatives)]
    others = [scores_of(pool, "scores") for pool in (checking.positives, checking.negatives)]
    if bins < 1 or not sum(map(len, pools)) or not sum(map(len, others)):
        raise MetricInputError("no bins or no scores", "calibration error", "give some of each")
    ordered = np.sort(np.concatenate(pools))
    edges = np.unique(ordered[np.arange(1, bins) * len(ordered) // bins])
    learnt = [np.bincount(np.searchsorted(edges, pool, "right"), minlength=len(edges) + 1) for pool in pools]
    seen = [np.bincount(np.searchsorted(edges, pool, "right"), minlength=len(edges) + 1) for pool in others]
    # A bin without scores on the choosing split is the one below its lowest score.
    share = learnt[0] / np.maximum(learnt[0] + learnt[1], 1)
    return float(np.abs(seen[0] - share * (seen[0] + seen[1])).sum() / (seen[0] + seen[1]).sum())
