"""Decision to answer: a question's best document is shown if its confidence reaches a threshold; else nothing is shown.

A threshold is chosen on some questions for a target value, and checked on others. Both kinds of questions count: those
that have an answer in the corpus, and those that have none, whose best document is never right.

`wrong_answers` and `missed` give a guarantee for the next question by conformal risk control (Angelopoulos et al., ICLR
2024). A threshold from n questions keeps the expected loss of the next question at most alpha. This holds for any
distribution if all n + 1 questions are exchangeable, such as n + 1 random questions of the same users. The expectation
is over all n + 1: one set of n questions may give a threshold that is too low, and another one that is too high.

    threshold = inf { t : (n R(t) + 1) / (n + 1) <= alpha },   R(t) = mean loss of the n questions at threshold t

The loss is 0 or 1, and does not rise with the threshold (or, for `missed_threshold`, does not fall). The guarantee
applies to the whole procedure: if no threshold meets it, nothing is shown (or everything, for `missed_threshold`).

The confidence of a question must not depend on the n questions, so these must not decide which confidence is used. The
guarantee is exact for `score`. The temperature of `entropy` is a median over the n questions, which one more question
hardly moves. `combined` is fitted to their right answers by cross-fitting, and has no guarantee.
docs/explanation/intervals.md has simulations.
"""

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

AnswerAim = Literal["top_precision", "answered", "f1", "wrong_answers", "missed"]
CONFORMAL: tuple[AnswerAim, ...] = ("wrong_answers", "missed")
# A precision needs at least so many shown answers, because a single right answer would reach any precision. Wilson's
# interval of 27 of 30 is 0.74 to 0.97. With fewer than 60 questions, half of them are enough.
FEWEST_ANSWERED = 30
# For 50 questions, Wilson's interval of a precision of 0.9 is 0.79 to 0.96. If one of two splits has fewer, the
# questions of both choose the threshold and check it, if there are at least 20.
FEWEST_QUESTIONS, FEWEST_IN_ALL = 50, 20
# A model of seven parameters gives intervals that are too narrow if it is fitted to fewer answers.
FEWEST_OF_COMBINED = 30
# If a threshold is checked on the questions that chose it, the interval must hold at all thresholds at once. In 95 % of
# samples of n questions, a share differs by at most 1.36 / sqrt(n) at all thresholds (Kolmogorov), but by at most
# 0.98 / sqrt(n) at a given one. So the interval is the one for (0.98 / 1.36)² = 0.52 times as many questions.
WORTH = 0.5
_CONFORMAL = "conformal threshold"


@dataclass(frozen=True)
class Threshold:
    """Threshold, and the value that it achieves on the questions or pairs that chose it.

    Args:
        aim: metric with a target; see `choose_answer_threshold` and `pair_threshold.choose_pair_threshold`.
        wanted: target value of the metric, above 0 and at most 1; None for the highest value.
        score: lowest confidence or score that is accepted; infinite if the target is out of reach.
        reached: whether a threshold with the target value exists.
        value: value of the metric at the threshold; if the target is out of reach, the best possible value.
    """

    aim: str
    wanted: float | None
    score: float
    reached: bool
    value: float


def choose_answer_threshold(
    confidence: Float64[ndarray, " questions"],
    right: Bool[ndarray, " questions"],
    answerable: Bool[ndarray, " questions"],
    aim: AnswerAim,
    wanted: float | None,
) -> Threshold:
    """Choose a threshold of confidence for a target value.

        top_precision(t) = right(t) / shown(t),   answered(t) = shown(t) with an answer / questions with an answer
        f1(t) = 2 right(t) / (shown(t) + questions with an answer)
        wrong_answers(t) = (shown(t) - right(t)) / questions,   missed(t) = 1 - answered(t)

    shown(t) are the questions whose confidence is at least t, and right(t) those of them whose best document is
    relevant. Equal confidences count together. Raise `MetricInputError` if the target is out of range, or no question
    has an answer.

    - `top_precision`: the lowest threshold that reaches the target with at least 30 shown answers (with fewer than 60
      questions, half of them). A higher threshold may have a lower precision.
    - `answered`: the highest threshold that reaches the target.
    - `f1`: the highest threshold with the highest F1.
    - `wrong_answers`, `missed`: the threshold that keeps the loss of later questions at most the target; see above.

    Args:
        confidence: confidence of the ranking of each question; -inf if there is no document.
        right: whether the best document is relevant.
        answerable: whether the corpus has an answer; at least one question must have one.
        wanted: target, above 0 and at most 1, below 1 for the last two; None for `f1`.
    """
    if (wanted is None) != (aim == "f1") or (wanted is not None and not 0 < wanted <= 1):
        raise MetricInputError(f"the target {aim} is {wanted}", "threshold", "give a share above 0 and at most 1")
    with_answer = int(answerable.sum())
    if not with_answer:
        raise MetricInputError("no question has an answer", "threshold", "give some that have one")
    scores = np.unique(confidence[np.isfinite(confidence)])
    shown, right_shown, of_answerable = (
        kept.sum() - np.searchsorted(np.sort(confidence[kept]), scores)
        for kept in (np.ones(len(right), bool), right, answerable)
    )
    if aim in CONFORMAL:
        alpha = float(wanted or 0)
        if aim == "wrong_answers":
            chosen = wrong_answers_threshold(confidence, right, alpha)
            values = (shown - right_shown) / len(right)
        else:
            chosen, values = missed_threshold(confidence[answerable], alpha), 1 - of_answerable / with_answer
        if chosen is None:
            return Threshold(aim, alpha, float("inf"), False, float(values.min(initial=1.0)))
        return Threshold(aim, alpha, chosen, True, float(values[np.searchsorted(scores, chosen)]))
    if aim == "top_precision":
        values = np.where(shown >= fewest_answers(len(right)), right_shown / np.maximum(shown, 1), np.nan)
    elif aim == "answered":
        values = of_answerable / with_answer
    else:
        values = 2 * right_shown / (shown + with_answer)
    return find_threshold(aim, wanted, scores, values, lowest=aim == "top_precision")


def find_threshold(
    aim: str, wanted: float | None, scores: Float64[ndarray, " scores"], values: ndarray, *, lowest: bool
) -> Threshold:
    """Return the lowest or highest of ascending scores whose value is at least the target; a value may be NaN."""
    best = float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")
    enough = np.flatnonzero(values >= (best if wanted is None else wanted))
    if not len(enough) or best == 0:
        return Threshold(aim, wanted, float("inf"), False, best)
    index = int(enough[0] if lowest else enough[-1])
    return Threshold(aim, wanted, float(scores[index]), True, float(values[index]))


def fewest_answers(questions: int) -> int:
    """Return the smallest number of shown answers that `top_precision` accepts."""
    return min(FEWEST_ANSWERED, (questions + 1) // 2)


@dataclass(frozen=True)
class AnswersAchieved:
    """Proportions that a threshold achieves on some questions.

    Args:
        answered: among questions with an answer, those for which a document is shown.
        top_precision: among questions for which a document is shown, those whose document is relevant.
        wrong: among all questions, those for which a document is shown that is not relevant.
        f1: twice the questions with a relevant shown document, by the shown questions plus those with an answer.
        unanswerable: for each kind of questions without an answer, those for which a document is shown.
    """

    answered: Proportion
    top_precision: Proportion
    wrong: Proportion
    f1: Proportion
    unanswerable: dict[str, Proportion]

    def of(self, aim: str) -> Proportion:
        """Return the proportion of an aim."""
        of_shown = {"top_precision": self.top_precision, "wrong_answers": self.wrong, "f1": self.f1}
        return (of_shown | {"answered": self.answered, "missed": self.answered.rest})[aim]


def achieve_answers(
    shown: Bool[ndarray, " questions"], questions: RankedQuestions, worth: float = 1.0
) -> AnswersAchieved:
    """Compute the proportions of questions whose best document is shown.

    Args:
        worth: factor on the number of questions for the intervals; below 1 if the questions chose the threshold.
    """
    right, answerable = shown & questions.right, questions.answerable

    def share(part: ndarray, whole: ndarray) -> Proportion:
        numbers = int((part & whole).sum()), int(whole.sum())
        return Proportion(*numbers, *wilson(*(worth * number for number in numbers)))

    parts, wholes = 2 * right.astype(np.int64), shown.astype(np.int64) + answerable
    return AnswersAchieved(
        answered=share(shown, answerable),
        top_precision=share(right, shown),
        wrong=share(shown & ~questions.right, np.ones(len(shown), bool)),
        f1=Proportion(int(parts.sum()), int(wholes.sum()), *wilson_by_query(parts, wholes, worth=worth)),
        unanswerable={
            str(kind): share(shown, questions.kinds == kind) for kind in np.unique(questions.kinds[~answerable])
        },
    )


@dataclass(frozen=True)
class AnswerDecision:
    """Decision of a model whether to answer the questions of a data set, and what it achieves.

    Args:
        thresholds: threshold of each aim, and what it achieves on the checked questions; None if out of reach.
        chosen: questions that chose the thresholds, with their confidence; that of `combined` is out of fold.
        checked: questions that checked the thresholds, with their confidence; with few questions, `chosen` itself.
    """

    confidence: Confidence
    thresholds: list[tuple[Threshold, AnswersAchieved | None]]
    chosen: tuple[RankedQuestions, Float64[ndarray, " questions"]]
    checked: tuple[RankedQuestions, Float64[ndarray, " questions"]]

    @property
    def is_checked_apart(self) -> bool:
        """True if thresholds were checked on questions other than those that chose them."""
        return self.checked is not self.chosen


def decide(
    choosing: RankedQuestions,
    checking: RankedQuestions,
    aims: Sequence[tuple[AnswerAim, float | None]],
    confidence: str = ENTROPY,
) -> AnswerDecision:
    """Fit a confidence and choose thresholds on one split, and check them on the other.

    If a split has fewer than 50 questions, all questions of both splits choose and check the thresholds. The
    proportions are then a little too good, and their intervals are those of half as many questions. Raise
    `MetricInputError` if both splits together have fewer than 20 questions (`combined`: 30), or no question has an
    answer.

    Args:
        choosing, checking: the questions; the same object if there is only one split.
        aims: metrics with targets, such as `("top_precision", 0.9)`, `("wrong_answers", 0.05)` and `("f1", None)`.
        confidence: one of `answer_confidence.NAMES`. Choosing the best one on the same questions breaks the guarantees.
    """
    is_split = choosing is not checking and has_two_splits(len(choosing), len(checking))
    every = choosing if is_split or choosing is checking else choosing.joined(checking)
    if not is_split:
        check_enough(len(every), confidence)
    held_out, fitted = held_out_confidence(confidence, every), fit_confidence(confidence, every)
    chosen = every, held_out
    checked = (checking, fitted.of(checking)) if is_split else chosen
    thresholds: list[tuple[Threshold, AnswersAchieved | None]] = []
    for aim, wanted in aims:
        threshold, achieved = choose_answer_threshold(held_out, every.right, every.answerable, aim, wanted), None
        if threshold.reached:
            achieved = achieve_answers(checked[1] >= threshold.score, checked[0], 1.0 if is_split else WORTH)
        thresholds.append((threshold, achieved))
    return AnswerDecision(fitted, thresholds, chosen, checked)


def has_two_splits(choosing: int, checking: int) -> bool:
    """Return whether both splits have enough questions, so that one chooses thresholds and the other checks them."""
    return min(choosing, checking) >= FEWEST_QUESTIONS


def check_enough(questions: int, confidence: str) -> None:
    """Raise `MetricInputError` if the questions of all splits are too few for a threshold of a confidence."""
    fewest = FEWEST_OF_COMBINED if confidence == COMBINED else FEWEST_IN_ALL
    if questions < fewest:
        remedy = f"a threshold of {confidence} needs {fewest} questions"
        raise MetricInputError(f"{questions} questions are too few", "threshold", remedy)


def unreachable(aim: str, wanted: float, questions: RankedQuestions) -> str:
    """Explain why a conformal target is out of reach for some questions."""
    needed, is_missed = fewest_questions(wanted), aim == "missed"
    count = int(questions.answerable.sum()) if is_missed else len(questions)
    which = "questions with an answer" if is_missed else "questions"
    if count < needed:
        return f"{count:,} {which} are too few: a share of {wanted:g} needs {needed:,}"
    return (
        f"too many {which} find no document" if is_missed else "too many of the most confident best documents are wrong"
    )


def fewest_questions(alpha: float) -> int:
    """Return the smallest number of questions with which a risk of `alpha`, above 0 and below 1, can be kept."""
    if not 0 < alpha < 1:
        raise MetricInputError(f"the share is {alpha:g}", _CONFORMAL, "give a share above 0 and below 1")
    return int(np.ceil(1 / alpha - 1 - 1e-9))


def wrong_answers_threshold(
    confidence: Float[ndarray, " questions"], right: Bool[ndarray, " questions"], alpha: float
) -> float | None:
    """Choose the lowest threshold at which a further question is shown a wrong answer with probability at most alpha.

    Args:
        confidence: confidence of each question, -inf without a document. The best document is shown if its confidence
            is at or above the threshold.
        alpha: share of all questions, above 0 and below 1.

    Returns:
        The threshold; None if there are too few questions, or if every confidence is too low. Then only showing nothing
        keeps the guarantee.
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
    """Choose the highest threshold at which a further question with an answer is shown none, with probability at most
    alpha.

    Args:
        confidence: confidence of questions that have an answer; -inf without a document, as it is always missed.
        alpha: share of such questions, above 0 and below 1.

    Returns:
        The threshold, a confidence that occurs; None if the questions are too few, or too many have no document.
    """
    confidence = np.sort(scores_of(confidence, _CONFORMAL).astype(np.float64))
    allowed = _allowed(alpha, len(confidence))
    threshold = float(confidence[min(allowed, len(confidence) - 1)]) if allowed >= 0 else -np.inf
    return threshold if np.isfinite(threshold) else None


def _allowed(alpha: float, questions: int) -> int:
    """Return how many of the questions may have a loss of 1; -1 if they are too few for alpha."""
    if questions < fewest_questions(alpha):
        return -1
    return int(np.floor(alpha * (questions + 1) + 1e-9)) - 1
