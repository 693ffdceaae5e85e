"""Score thresholds: chosen on one split for a wanted value, and checked on another split.

A value is the precision or recall of pairs, or the precision of the top answers, the share of answered queries, or F1
of the decision to answer. The top answer of a query is its best-scoring document. A check reports how many queries have
an answer, how often the best answer is relevant, and precision and recall of pairs, each with an interval: of
independent cases, or of cases that are grouped by query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray
from scipy.special import ndtri, stdtrit

from raytriever.metrics.auc import sort_pools
from raytriever.metrics.inputs import MetricInputError, check_confidence, check_queries, scores_of


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute Wilson's (1927) interval of a share of independent cases; 0 and 1 without trials.

        (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)

    Unlike p ± z sqrt(p (1 - p) / n), the bounds stay within 0 and 1, and hold for shares near them.
    """
    check_confidence(confidence)
    if not 0 <= successes <= trials:
        raise MetricInputError(f"{successes} of {trials}", "share", "give successes from 0 to the number of trials")
    if not trials:
        return 0.0, 1.0
    return _wilson_bounds(successes / trials, trials, _normal_quantile(confidence))


def wilson_by_query(
    parts: Int64[ndarray, " queries"], wholes: Int64[ndarray, " queries"], confidence: float = 0.95
) -> tuple[float, float]:
    """Compute an interval of `sum(parts) / sum(wholes)` if the cases of a query are alike; 0 and 1 without a case.

    It is Wilson's interval for an effective number of independent cases n, with Student's quantile t instead of z:

        n = p (1 - p) / V,   V = Q / (Q - 1) Σ_q (part_q - p whole_q)² / (Σ_q whole_q)²

    V is the variance of the ratio over the Q queries with a case, by the linearisation of survey sampling (Korn &
    Graubard, 1998), and t has Q - 1 degrees of freedom. n is at most the number of cases. If all cases count, or none,
    the variance within queries is unknown, and each query counts as one case: n = Q.
    """
    check_confidence(confidence)
    if len(parts) != len(wholes) or bool((parts < 0).any()) or bool((parts > wholes).any()):
        raise MetricInputError(
            f"{len(parts)} parts of {len(wholes)} queries",
            "share",
            "give both for each query, with no part above its whole",
        )
    parts, wholes = parts[wholes > 0].astype(np.float64), wholes[wholes > 0].astype(np.float64)
    queries, cases = len(wholes), float(wholes.sum())
    if not queries:
        return 0.0, 1.0
    share = float(parts.sum()) / cases
    if queries == 1:
        return _wilson_bounds(share, 1.0, _normal_quantile(confidence))
    residuals = parts - share * wholes
    variance = queries / (queries - 1) * float(residuals @ residuals) / cases**2
    effective = min(share * (1 - share) / variance, cases) if variance > 0 else float(queries)
    return _wilson_bounds(share, effective, float(stdtrit(queries - 1, (1 + confidence) / 2)))


def _normal_quantile(confidence: float) -> float:
    return float(ndtri((1 + confidence) / 2))


def _wilson_bounds(share: float, trials: float, z: float) -> tuple[float, float]:
    middle = share + z * z / (2 * trials)
    reach = z * float(np.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)))
    whole = 1 + z * z / trials
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)


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


# Precision of the top answers, share of answered queries, or F1 of the decision to answer.
TopAim = Literal["top_precision", "answered", "f1"]
Aim = Literal["precision", "recall"] | TopAim
# Aim and wanted value; None for `f1`.
WantedAim = tuple[Aim, float | None]
# A precision of the top answers is one of at least as many shown answers: Wilson's interval of 27 of 30 is 0.74 to
# 0.97, and a single right answer would have any precision.
FEWEST_ANSWERED = 30


@dataclass(frozen=True)
class Threshold:
    """Threshold, and what it achieves on the pools on which it was chosen.

    Args:
        aim: `precision` or `recall` of pairs, or a `TopAim`.
        wanted: wanted value of it, above 0 and at most 1; None for the highest.
        score: lowest score that counts as relevant; infinite if the aim is out of reach.
        reached: a threshold with the wanted value exists.
        value: value of the aim at the threshold; if it is out of reach, the best there is.
        precision, recall: of pairs at the threshold; if the aim is out of reach, at the threshold of highest precision.
    """

    aim: Aim
    wanted: float | None
    score: float
    reached: bool
    value: float
    precision: float
    recall: float


def choose_threshold(pools: ScoredPools, aim: Aim, wanted: float | None) -> Threshold:
    """Choose one threshold for the scores of all queries, for a wanted value.

        precision(t) = |{p >= t}| / (|{p >= t}| + |{n >= t}|),   recall(t) = |{p >= t}| / |P|
        top_precision(t) = right(t) / shown(t),   answered(t) = shown(t) / queries
        f1(t) = 2 right(t) / (shown(t) + queries)

    shown(t) are the queries whose top answer scores at least t, and right(t) those of them whose top answer is
    relevant. F1 is that of the decision for queries that all have an answer: its recall is right(t) / queries. Equal
    scores count together, and only scores that occur are thresholds.

    - A precision: the lowest threshold that has it, which has the highest recall. It may fall below the wanted value
      between such thresholds. That of the top answers is one of at least 30 shown answers.
    - A recall or a share of answered queries: the highest threshold that has it.
    - `f1`: the highest threshold of the highest F1.

    Precision depends on the number of scored negatives per positive, so a threshold holds for pools made in one way.

    Args:
        pools: pooled scores; aims of top answers need their queries.
        aim: the value that is wanted.
        wanted: above 0 and at most 1; None for `f1`.

    Raises:
        MetricInputError: a score is NaN or has no query, there is no positive, or the aim is out of range.
    """
    if (wanted is None) != (aim == "f1") or (wanted is not None and not 0 < wanted <= 1):
        raise MetricInputError(f"a {aim} of {wanted}", "threshold", "give a precision or recall above 0 and at most 1")
    pair_scores, right, shown = _points(pools.positives, pools.negatives)
    precisions, recalls = right / shown, right / len(pools.positives)
    if aim == "precision" or aim == "recall":
        scores, values = pair_scores, precisions if aim == "precision" else recalls
    else:
        scores, values = _values_of_answers(top_answers(pools), aim)
    best = float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")
    enough = np.flatnonzero(values >= (best if wanted is None else wanted))
    reached = len(enough) > 0 and best != 0
    if reached:
        index = int(enough[0] if aim in ("precision", "top_precision") else enough[-1])
        score, value = float(scores[index]), float(values[index])
        at = int(np.searchsorted(pair_scores, score))
    else:
        score, value, at = float("inf"), best, int(precisions.argmax())
    return Threshold(aim, wanted, score, reached, value, float(precisions[at]), float(recalls[at]))


def _values_of_answers(answers: TopAnswers, aim: TopAim) -> tuple[ndarray, ndarray]:
    """Return the finite scores of top answers, ascending, and the value of the aim at each; NaN if there is none."""
    scores = np.unique(answers.scores[np.isfinite(answers.scores)])
    shown = len(answers.scores) - np.searchsorted(np.sort(answers.scores), scores)
    right = np.sort(answers.scores[answers.right])
    rights = len(right) - np.searchsorted(right, scores)
    if aim == "top_precision":
        return scores, np.where(shown >= FEWEST_ANSWERED, rights / shown, np.nan)
    if aim == "answered":
        return scores, shown / max(len(answers.scores), 1)
    return scores, 2 * rights / (shown + len(answers.scores))


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
class Proportion:
    """Share with its confidence interval. A share of nothing is NaN, with bounds 0 and 1.

    Args:
        part, whole: number of counted cases, and of all cases.
        low, high: bounds of the interval.
    """

    part: int
    whole: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share, part / whole."""
        return self.part / self.whole if self.whole else float("nan")


@dataclass(frozen=True)
class Achieved:
    """Shares of a split that a threshold achieves. A pair is accepted if it scores at or above the threshold.

    Args:
        coverage: queries with an accepted pair, of all queries.
        top_precision: queries whose best-scoring document is relevant, of those with an accepted pair. A best score
            that a relevant and another document share does not count.
        precision: relevant pairs, of all accepted pairs.
        recall: accepted relevant pairs, of all relevant pairs.
        f1: twice the queries of which the best-scoring document is accepted and relevant, of all queries and those with
            an accepted pair together.
    """

    coverage: Proportion
    top_precision: Proportion
    precision: Proportion
    recall: Proportion
    f1: Proportion


@dataclass(frozen=True)
class CalibrationRow:
    """Threshold with its values on the choosing split, and the shares that it achieves on the checking split."""

    threshold: Threshold
    achieved: Achieved | None

    @property
    def wanted(self) -> Proportion | None:
        """The aim's share on the checking split; None if the aim is out of reach."""
        name = "coverage" if self.threshold.aim == "answered" else self.threshold.aim
        return None if self.achieved is None else getattr(self.achieved, name)

    @property
    def checked(self) -> float:
        """Value of `wanted`; NaN if the aim is out of reach, or for a precision without accepted pairs."""
        return self.wanted.value if self.wanted else float("nan")

    @property
    def low(self) -> float:
        """Lower bound of `checked`; NaN if `checked` is."""
        return self.wanted.low if self.wanted and self.wanted.whole else float("nan")

    @property
    def high(self) -> float:
        """Upper bound of `checked`; NaN if `checked` is."""
        return self.wanted.high if self.wanted and self.wanted.whole else float("nan")


def calibrate(
    choosing: ScoredPools, checking: ScoredPools, aims: Iterable[WantedAim], confidence: float = 0.95
) -> list[CalibrationRow]:
    """Choose a threshold for each aim on one split, and check it on another split.

    Queries are independent, so shares of queries have Wilson's interval. Pairs of one query are not: their shares have
    Wilson's interval for an effective number of pairs (`wilson_by_query`).

    `probability.calibration_error_of_scores` compares the splits without a threshold.

    Args:
        choosing, checking: two splits whose pools were made in the same way.
        aims: such as `("precision", 0.9)`, `("top_precision", 0.9)`, `("answered", 0.8)` and `("f1", None)`.
        confidence: confidence of the intervals.
    """
    rows = []
    for aim, wanted in aims:
        threshold = choose_threshold(choosing, aim, wanted)
        achieved = achieve(checking, threshold.score, confidence) if threshold.reached else None
        rows.append(CalibrationRow(threshold, achieved))
    return rows


def achieve(pools: ScoredPools, score: float, confidence: float = 0.95) -> Achieved:
    """Compute the shares that a threshold achieves on a split.

    Pairs with the score or a higher one are accepted.
    """
    if not len(pools.positives):
        raise MetricInputError("no positives", "checking split", "check on a split that has judged documents")
    positives = scores_of(pools.positives, "scores of positives")
    negatives = scores_of(pools.negatives, "scores of negatives")
    true, false = positives >= score, negatives >= score
    accepted, relevant = int(true.sum() + false.sum()), int(true.sum())
    ours, theirs = queries_of(pools.positive_queries, true), queries_of(pools.negative_queries, false)
    count = int(max(ours.max(), theirs.max(initial=0))) + 1
    parts = np.bincount(ours[true], minlength=count)
    wholes = parts + np.bincount(theirs[false], minlength=count)
    answered, answers = wholes > 0, top_answers(pools)
    right = answers.right & (answers.scores >= score)
    all_relevant = np.bincount(ours, minlength=count)
    return Achieved(
        coverage=_independent(int(answered.sum()), count, confidence),
        top_precision=_independent(int(right.sum()), int(answered.sum()), confidence),
        precision=Proportion(relevant, accepted, *wilson_by_query(parts, wholes, confidence)),
        recall=Proportion(relevant, len(true), *wilson_by_query(parts, all_relevant, confidence)),
        f1=Proportion(
            2 * int(right.sum()), int(answered.sum()) + count, *wilson_by_query(2 * right, answered + 1, confidence)
        ),
    )


def _independent(part: int, whole: int, confidence: float) -> Proportion:
    return Proportion(part, whole, *wilson(part, whole, confidence))
