"""Thresholds with a guarantee for the next question: conformal risk control (Angelopoulos et al., ICLR 2024).

A threshold of n questions keeps the expected loss of a further one at or below alpha, whatever the distribution, if all
n + 1 questions are exchangeable, such as n + 1 random questions of the same users. The expectation is over all n + 1:
one set of n questions may give a threshold that is a little too low, another one that is a little too high.

    threshold = inf { t : (n R(t) + 1) / (n + 1) <= alpha },   R(t) = mean loss of the n questions at threshold t

The loss is 0 or 1, and does not rise with the threshold (or, for `missed_threshold`, does not fall). The confidence of
a question must not depend on the n questions. If it was fitted on them, give what was fitted on the others
(cross-fitting); then the guarantee is no longer exact, and `benchmarks/conformal.py` measures it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, scores_of

_WHERE = "conformal threshold"


def fewest_questions(alpha: float) -> int:
    """Return the smallest number of questions with which a risk of `alpha`, above 0 and below 1, can be kept."""
    if not 0 < alpha < 1:
        raise MetricInputError(f"a share of {alpha:g}", _WHERE, "give a share above 0 and below 1")
    return int(np.ceil(1 / alpha - 1 - 1e-9))


def wrong_answers_threshold(
    confidence: Float[ndarray, " questions"], right: Bool[ndarray, " questions"], alpha: float
) -> float | None:
    """Choose the lowest threshold at which a further question is shown a wrong answer with probability at most alpha.

    Args:
        confidence: of each question; its best document is shown at or above the threshold.
        alpha: share of all questions, above 0 and below 1.

    Returns:
        The threshold; None if the questions are too few, or if no confidence that occurs is high enough: then only
        showing nothing keeps the promise.

    Examples:
        >>> confidence = np.arange(40) / 40
        >>> round(wrong_answers_threshold(confidence, confidence >= 0.25, 0.05), 3)
        0.2
    """
    confidence = scores_of(confidence, _WHERE).astype(np.float64)
    wrong = np.sort(confidence[~np.asarray(right, bool)])[::-1]
    allowed = _allowed(alpha, len(confidence))
    if allowed < 0:
        return None
    if allowed >= len(wrong):
        return float(confidence.min())
    threshold = float(np.nextafter(wrong[allowed], np.inf))
    return threshold if (confidence >= threshold).any() else None


def missed_threshold(confidence: Float[ndarray, " questions"], alpha: float) -> float | None:
    """Choose the highest threshold at which a further question with an answer is shown none with probability alpha.

    Args:
        confidence: of questions that have an answer.
        alpha: share of such questions, above 0 and below 1.

    Returns:
        The threshold, a confidence that occurs; None if the questions are too few: then only showing every best
        document keeps the promise.

    Examples:
        >>> missed_threshold(np.arange(40) / 40, 0.1)
        0.075
    """
    confidence = np.sort(scores_of(confidence, _WHERE).astype(np.float64))
    allowed = _allowed(alpha, len(confidence))
    return None if allowed < 0 else float(confidence[min(allowed, len(confidence) - 1)])


def _allowed(alpha: float, questions: int) -> int:
    """Return how many of the questions may have a loss of 1; -1 if they are too few for alpha."""
    if questions < fewest_questions(alpha):
        return -1
    return int(np.floor(alpha * (questions + 1) + 1e-9)) - 1
