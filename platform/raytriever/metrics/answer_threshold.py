"""Decision to answer: the best document of a question is shown only if its confidence reaches a threshold.

A threshold is chosen on some questions for a target value, and checked on others. Some of the questions have an answer
in the corpus. The others have none, so their best document is never right.

`wrong_answers` and `missed` give a guarantee for the next question by conformal risk control (Angelopoulos et al., ICLR
2024). With a threshold from n questions, the expected loss of the next question is at most alpha. This is true for any
distribution if all n + 1 questions are exchangeable, such as n + 1 random questions of the same users. The expectation
is over all n + 1 questions: the threshold of one set of n questions may be too low, that of another set too high.

    threshold = inf { t : (n R(t) + 1) / (n + 1) <= alpha },   R(t) = mean loss of the n questions at threshold t

The loss is 0 or 1. It does not rise with the threshold (for `missed_threshold`, it does not fall). The guarantee is for
the whole procedure: if no threshold is good enough, nothing is shown (everything, for `missed_threshold`).

The confidence of a question must not depend on the n questions, so they must not be used to choose the confidence. The
guarantee is exact for `score`. The temperature of `entropy` is a median over the n questions, which one more question
hardly changes. `combined` is cross-fitted to their right and wrong answers, so it has no guarantee.
docs/explanation/intervals.md has simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from raytriever.metrics.answer_confidence import (
    COMBINED,
    ENTROPY,
    Confidence,
    RankedQuestions,
    fit_confidence,
    held_out_confidence,
)
from raytriever.metrics.intervals import Proportion, wilson, wilson_by_query
from raytriever.metrics.metric_inputs import MetricInputError, scores_of

AnswerTarget = Literal["top_precision", "answered", "f1", "wrong_answers", "missed"]
CONFORMAL: tuple[AnswerTarget, ...] = ("wrong_answers", "missed")
# Smallest number of shown answers for a target precision: a single right answer would reach any precision. Wilson's
# interval for 27 of 30 is 0.74 to 0.97. With fewer than 60 questions, half of the questions are enough.
FEWEST_ANSWERED = 30
# For 50 questions, Wilson's interval of a precision of 0.9 is 0.79 to 0.96. If one of two splits has fewer questions,
# the threshold is chosen and checked on all questions of both splits, if there are at least 20.
FEWEST_QUESTIONS, FEWEST_IN_ALL = 50, 20
# `combined` is a model of seven parameters. If it is fitted to fewer questions than this, the intervals are too narrow.
FEWEST_OF_COMBINED = 30
# If a threshold is chosen and checked on the same questions, the interval must be valid for all thresholds at once. In
# 95 % of samples of n questions, the error of a fraction is at most 1.36 / sqrt(n) at all thresholds (Kolmogorov), but
# at most 0.98 / sqrt(n) at one fixed threshold. So the interval is that of (0.98 / 1.36)² = 0.52 times as many
# questions.
WORTH = 0.5
_CONFORMAL = "conformal threshold"


@dataclass(frozen=True)
class Threshold:
    """Threshold, and the value that it achieves on the questions or pairs on which it was chosen."""

    target: str  # metric of the target; see `choose_answer_threshold` and `pair_threshold.choose_pair_threshold`
    wanted: float | None  # target value of the metric, above 0 and at most 1; None for the highest value
    score: float  # lowest confidence or score that is accepted; infinite if the target is out of reach
    reached: bool  # whether a threshold with the target value exists
    value: float  # value of the metric at the threshold; if the target is out of reach, the best possible value


def choose_answer_threshold(
    confidence: Float64[ndarray, " questions"],
    right: Bool[ndarray, " questions"],
    answerable: Bool[ndarray, " questions"],
    target: AnswerTarget,
    wanted: float | None,
) -> Threshold:
    """Choose a threshold of confidence for a target value.

        top_precision(t) = right(t) / shown(t),   answered(t) = shown(t) with an answer / questions with an answer
        f1(t) = 2 right(t) / (shown(t) + questions with an answer)
        wrong_answers(t) = (shown(t) - right(t)) / questions,   missed(t) = 1 - answered(t)

    shown(t) is the number of questions whose confidence is at least t. right(t) is the number of these questions whose
    best document is relevant. Questions with equal confidence are shown together. Raise `MetricInputError` if the
    target is out of range, or no question has an answer.

    - `top_precision`: the lowest threshold that reaches the target with at least 30 shown answers (with fewer than 60
      questions, half of them). A higher threshold may have a lower precision.
    - `answered`: the highest threshold that reaches the target.
    - `f1`: the highest threshold with the highest F1.
    - `wrong_answers`, `missed`: the threshold for which the expected loss of a new question is at most the target.

    Args:
        confidence: confidence of the ranking of each question; -inf if there is no document.
        right: whether the best document is relevant.
        answerable: whether the corpus has an answer; at least one question must have one.
        wanted: target, above 0 and at most 1; below 1 for `wrong_answers` and `missed`; None for `f1`.
    """
    if (wanted is None) != (target == "f1") or (wanted is not None and not 0 < wanted <= 1):
        raise MetricInputError(f"the target {target} is {wanted}", "threshold", "give a fraction above 0 and at most 1")
    with_answer = int(answerable.sum())
    if not with_answer:
        raise MetricInputError("no question has an answer", "threshold", "give questions with an answer")
    scores = np.unique(confidence[np.isfinite(confidence)])
    shown, right_shown, of_answerable = (
        kept.sum() - np.searchsorted(np.sort(confidence[kept]), scores)
        for kept in (np.ones(len(right), bool), right, answerable)
    )
    if target in CONFORMAL:
        alpha = float(wanted or 0)
        if target == "wrong_answers":
            chosen = wrong_answers_threshold(confidence, right, alpha)
            values = (shown - right_shown) / len(right)
        else:
            chosen, values = missed_threshold(confidence[answerable], alpha), 1 - of_answerable / with_answer
        if chosen is None:
            return Threshold(target, alpha, float("inf"), False, float(values.min(initial=1.0)))
        return Threshold(target, alpha, chosen, True, float(values[np.searchsorted(scores, chosen)]))
    if target == "top_precision":
        values = np.where(shown >= fewest_answers(len(right)), right_shown / np.maximum(shown, 1), np.nan)
    elif target == "answered":
        values = of_answerable / with_answer
    else:
        values = 2 * right_shown / (shown + with_answer)
    return find_threshold(target, wanted, scores, values, lowest=target == "top_precision")


def find_threshold(
    target: str, wanted: float | None, scores: Float64[ndarray, " scores"], values: ndarray, *, lowest: bool
) -> Threshold:
    """Return the lowest or highest of the ascending `scores` whose `values` entry reaches `wanted`; NaN does not."""
    best = float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")
    enough = np.flatnonzero(values >= (best if wanted is None else wanted))
    if not len(enough) or best == 0:
        return Threshold(target, wanted, float("inf"), False, best)
    index = int(enough[0] if lowest else enough[-1])
    return Threshold(target, wanted, float(scores[index]), True, float(values[index]))


def fewest_answers(questions: int) -> int:
    """Return the smallest number of shown answers that `top_precision` accepts."""
    return min(FEWEST_ANSWERED, (questions + 1) // 2)


@dataclass(frozen=True)
class AnswersAchieved:
    """Proportions that a threshold achieves on some questions."""

    answered: Proportion  # fraction of the questions with an answer for which a document is shown
    top_precision: Proportion  # fraction of the questions with a shown document whose document is relevant
    wrong: Proportion  # fraction of all questions for which a document is shown that is not relevant
    f1: Proportion  # 2 * shown relevant documents / (shown documents + questions with an answer)
    # For each kind of questions without an answer, the fraction of these for which a document is shown.
    unanswerable: dict[str, Proportion]

    def of(self, target: str) -> Proportion:
        """Return the proportion that belongs to a target."""
        of_shown = {"top_precision": self.top_precision, "wrong_answers": self.wrong, "f1": self.f1}
        return (of_shown | {"answered": self.answered, "missed": self.answered.rest})[target]


def achieve_answers(
    shown: Bool[ndarray, " questions"], questions: RankedQuestions, worth: float = 1.0
) -> AnswersAchieved:
    """Compute the proportions of questions whose best document is shown.

    Args:
        worth: n questions are treated as `worth` * n. Give less than 1 if the threshold was chosen on them.
    """
    right, answerable = shown & questions.right, questions.answerable

    def fraction(counted: ndarray, among: ndarray) -> Proportion:
        numbers = int((counted & among).sum()), int(among.sum())
        return Proportion(*numbers, *wilson(*(worth * number for number in numbers)))

    counts, totals = 2 * right.astype(np.int64), shown.astype(np.int64) + answerable
    return AnswersAchieved(
        answered=fraction(shown, answerable),
        top_precision=fraction(right, shown),
        wrong=fraction(shown & ~questions.right, np.ones(len(shown), bool)),
        f1=Proportion(int(counts.sum()), int(totals.sum()), *wilson_by_query(counts, totals, worth=worth)),
        unanswerable={
            str(kind): fraction(shown, questions.kinds == kind) for kind in np.unique(questions.kinds[~answerable])
        },
    )


@dataclass(frozen=True)
class AnswerDecision:
    """Rule by which a model decides whether to answer a question of a data set, and what the rule achieves."""

    confidence: Confidence
    # Each target's threshold, and what the threshold achieves when checked (None if the target is out of reach).
    thresholds: list[tuple[Threshold, AnswersAchieved | None]]
    # Questions on which thresholds were chosen, and their confidences; those of `combined` are out-of-fold.
    chosen: tuple[RankedQuestions, Float64[ndarray, " questions"]]
    # Questions on which the thresholds are checked, and their confidences. If one split has too few questions,
    # this is the same object as `chosen`.
    checked: tuple[RankedQuestions, Float64[ndarray, " questions"]]

    @property
    def is_checked_apart(self) -> bool:
        """True if thresholds were chosen and checked on different questions."""
        return self.checked is not self.chosen


def decide(
    choosing: RankedQuestions,
    checking: RankedQuestions,
    targets: Sequence[tuple[AnswerTarget, float | None]],
    confidence: str = ENTROPY,
) -> AnswerDecision:
    """Fit a confidence and choose thresholds on one split, and check them on the other.

    If a split has fewer than 50 questions, thresholds are chosen and checked on all questions of both splits. Then the
    proportions are a little too good, and the intervals are those of half as many questions. Raise
    `MetricInputError` if both splits together have fewer than 20 questions (`combined`: 30), or no question has an
    answer.

    Args:
        choosing, checking: the questions; the same object if there is only one split.
        targets: metrics with target values, such as `("top_precision", 0.9)`, `("wrong_answers", 0.05)` and `("f1",
            None)`.
        confidence: one of `answer_confidence.NAMES`. If it is chosen on the same questions, there is no guarantee.
    """
    is_split = choosing is not checking and has_two_splits(len(choosing), len(checking))
    every = choosing if is_split or choosing is checking else choosing.joined(checking)
    if not is_split:
        check_enough(len(every), confidence)
    held_out, fitted = held_out_confidence(confidence, every), fit_confidence(confidence, every)
    chosen = every, held_out
    checked = (checking, fitted.of(checking)) if is_split else chosen
    thresholds: list[tuple[Threshold, AnswersAchieved | None]] = []
    for target, wanted in targets:
        threshold, achieved = choose_answer_threshold(held_out, every.right, every.answerable, target, wanted), None
        if threshold.reached:
            achieved = achieve_answers(checked[1] >= threshold.score, checked[0], 1.0 if is_split else WORTH)
        thresholds.append((threshold, achieved))
    return AnswerDecision(fitted, thresholds, chosen, checked)


def has_two_splits(choosing: int, checking: int) -> bool:
    """Return whether both splits have enough questions: one for choosing thresholds, the other for checking them."""
    return min(choosing, checking) >= FEWEST_QUESTIONS


def check_enough(questions: int, confidence: str) -> None:
    """Raise `MetricInputError` if all splits together have too few questions for a threshold of a confidence."""
    fewest = FEWEST_OF_COMBINED if confidence == COMBINED else FEWEST_IN_ALL
    if questions < fewest:
        remedy = f"give at least {fewest} for a threshold of {confidence}"
        raise MetricInputError(f"{questions} questions are too few", "threshold", remedy)


def unreachable(target: str, wanted: float, questions: RankedQuestions) -> str:
    """Explain why a conformal target is out of reach for some questions."""
    needed, is_missed = fewest_questions(wanted), target == "missed"
    count = int(questions.answerable.sum()) if is_missed else len(questions)
    which = "questions with an answer" if is_missed else "questions"
    if count < needed:
        return f"{count:,} {which} are too few: a fraction of {wanted:g} needs {needed:,}"
    return (
        f"too many {which} find no document" if is_missed else "too many of the most confident best documents are wrong"
    )


def fewest_questions(alpha: float) -> int:
    """Return the smallest number of questions that can guarantee a risk of at most `alpha` (above 0, below 1)."""
    if not 0 < alpha < 1:
        raise MetricInputError(f"the fraction is {alpha:g}", _CONFORMAL, "give a fraction above 0 and below 1")
    return int(np.ceil(1 / alpha - 1 - 1e-9))


def wrong_answers_threshold(
    confidence: Float[ndarray, " questions"], right: Bool[ndarray, " questions"], alpha: float
) -> float | None:
    """Choose the lowest threshold at which a new question is shown a wrong answer with probability at most alpha.

    Args:
        confidence: confidence of each question, -inf without a document. The best document is shown if its confidence
            is at or above the threshold.
        alpha: allowed fraction of all questions that are shown a wrong answer, above 0 and below 1.

    Returns:
        The threshold. None if there are too few questions, or if every confidence is too low. Then only
        showing nothing keeps the guarantee.
    """
    confidence = scores_of(confidence, _CONFORMAL).astype(np.float64)
    is_found = np.isfinite(confidence)
    wrong = np.sort(confidence[is_found & ~np.asarray(right, bool)])[::-1]
    allowed = _allowed(alpha, len(confidence))
    if allowed < 0 or not is_found.any():
        return None
    if allowed >= len(wrong):
        return float(confidence[is_found].min())
    threshold = float(np.nextafter(wrong[allowed], np.inf))
    return threshold if (confidence >= threshold).any() else None


def missed_threshold(confidence: Float[ndarray, " questions"], alpha: float) -> float | None:
    """Choose the highest threshold at which a new question with an answer is shown no document with probability at
    most alpha.

    Args:
        confidence: confidence of questions with an answer; -inf without a document: such questions are always missed.
        alpha: allowed fraction of such questions that are shown no document, above 0 and below 1.

    Returns:
        The threshold, which is one of the confidences. None if questions are too few, or too many lack a document.
    """
    confidence = np.sort(scores_of(confidence, _CONFORMAL).astype(np.float64))
    allowed = _allowed(alpha, len(confidence))
    threshold = float(confidence[min(allowed, len(confidence) - 1)]) if allowed >= 0 else -np.inf
    return threshold if np.isfinite(threshold) else None


def _allowed(alpha: float, questions: int) -> int:
    """Return how many of the questions may have a loss of 1; -1 if there are too few questions for this alpha."""
    if questions < fewest_questions(alpha):
        return -1
    return int(np.floor(alpha * (questions + 1) + 1e-9)) - 1
