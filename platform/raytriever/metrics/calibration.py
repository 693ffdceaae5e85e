"""Whether a score means the same on another split: thresholds chosen on one and checked on another.

1. For each wanted precision or recall a threshold is chosen on the pooled scores of one split (`threshold.py`).
2. It is applied to the pooled scores of another, which gives what it achieves there, with an interval: by drawing whole
   queries where it is known which query a score belongs to, else Wilson's, which takes scores for independent.
3. The transfer error is the mean distance between what a threshold achieved here and there.
4. The expected calibration error asks the same without a threshold: scores are cut into bins of as many scores each on
   the choosing split, the share of positives in a bin is taken for the chance that a score in it is relevant (histogram
   binning: Zadrozny & Elkan, 2001), and compared with the share on the checking split:

       ECE = Σ_b (n_b / n) |positives_b / n_b - share_b|,   n_b of the n scores checked in bin b   (Guo et al., 2017)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, check_queries, scores_of
from raytriever.metrics.proportions import bootstrap_by_query, wilson
from raytriever.metrics.threshold import Aim, Threshold, choose_threshold


@dataclass(frozen=True)
class ScoredPools:
    """The pooled scores of a split, and, where known, to which of its queries each belongs, from 0."""

    positives: Float[ndarray, " positives"]
    negatives: Float[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"] | None = None
    negative_queries: Int64[ndarray, " negatives"] | None = None


@dataclass(frozen=True)
class CalibrationRow:
    """One line of the table: a threshold and what it achieves on the checking split.

    Args:
        threshold: with what was wanted, and what it achieves on the choosing split.
        checked: precision or recall on the checking split, whichever was wanted; NaN for a precision where no score
            reaches the threshold, and where the aim was out of reach.
        low, high: the bounds of `checked`.
    """

    threshold: Threshold
    checked: float
    low: float
    high: float


def calibrate(
    choosing: ScoredPools,
    checking: ScoredPools,
    aims: Iterable[tuple[Aim, float]],
    confidence: float = 0.95,
    draws: int = 2_000,
    seed: int = 0,
) -> list[CalibrationRow]:
    """The table: for each wanted precision or recall a threshold, and what it achieves on the other split.

    Args:
        choosing, checking: two splits, whose pools were made in the same way.
        aims: `("precision", 0.9)` and the like.
        confidence, draws, seed: of the intervals.

    Raises:
        MetricInputError: a score is NaN, a split has no positive, or an aim is out of range.
    """
    rows = []
    for aim, wanted in aims:
        threshold = choose_threshold(choosing.positives, choosing.negatives, aim, wanted)
        rows.append(_checked(threshold, checking, confidence, draws, seed))
    return rows


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


def _checked(threshold: Threshold, pools: ScoredPools, confidence: float, draws: int, seed: int) -> CalibrationRow:
    if not len(pools.positives):
        raise MetricInputError("no positives", "checking split", "check on a split that has judged documents")
    true = scores_of(pools.positives, "scores of positives") >= threshold.score
    false = scores_of(pools.negatives, "scores of negatives") >= threshold.score
    part, whole = int(true.sum()), len(true) if threshold.aim == "recall" else int(true.sum() + false.sum())
    if not threshold.reached or not whole:
        return CalibrationRow(threshold, float("nan"), float("nan"), float("nan"))
    if pools.positive_queries is None or pools.negative_queries is None:
        return CalibrationRow(threshold, part / whole, *wilson(part, whole, confidence))
    check_queries(pools.positive_queries, true, "checking split")
    check_queries(pools.negative_queries, false, "checking split")
    count = int(max(pools.positive_queries.max(), pools.negative_queries.max(initial=0))) + 1
    parts = np.bincount(pools.positive_queries[true], minlength=count)
    wholes = parts + np.bincount(pools.negative_queries[false], minlength=count)
    if threshold.aim == "recall":
        wholes = np.bincount(pools.positive_queries, minlength=count)
    return CalibrationRow(threshold, part / whole, *bootstrap_by_query(parts, wholes, confidence, draws, seed))
