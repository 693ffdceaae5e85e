"""Threshold of passages: it decides which ranked passages of a question are kept, for example for an LLM's prompt.

A passage is kept if it is among the `depth` best passages of its question, and if its score reaches the threshold. The
metric is the fraction of a question's relevant passages that is kept, for questions with an answer.

The guarantee is conformal risk control (Angelopoulos et al., ICLR 2024), as Chakraborty et al. (2025, arXiv:2511.17908)
select contexts. The loss of a question is the fraction of its relevant passages that is not kept, 0 to 1. It does not
fall as the threshold rises. If n questions and a new one are exchangeable, its expected loss is <= 1 - wanted:

    threshold = max { t : (n R(t) + 1) / (n + 1) <= 1 - wanted },   R(t) = mean loss of the n questions at t

No threshold keeps a relevant passage outside the ranking. So if rankings are too short, there may be no threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.answer_threshold import Threshold, fewest_questions
from raytriever.metrics.intervals import wilson_by_query
from raytriever.metrics.metric_inputs import MetricInputError

PassageTarget = Literal["kept"]
KEPT: PassageTarget = "kept"
# Maximum number of passages that may be kept per question: the length of the rankings in a run file.
DEPTH = 100


@dataclass(frozen=True)
class RankedPassages:
    """Ranked passages of questions that have an answer in the corpus."""

    scores: Float[ndarray, "questions depth"]  # the highest scores of each question; NaN if there is no passage
    relevant: Bool[ndarray, "questions depth"]  # whether these passages are relevant
    counts: Int64[ndarray, " questions"]  # number of relevant passages of each question in the corpus, at least 1

    def __len__(self) -> int:
        return len(self.counts)

    def joined(self, other: Self) -> Self:
        """Return these questions and those of `other`. Shorter rankings are padded with NaN."""
        depth = max(self.scores.shape[1], other.scores.shape[1])
        scores, relevant = [], []
        for questions in (self, other):
            dim = (0, 0), (0, depth - questions.scores.shape[1])
            scores.append(np.pad(questions.scores, dim, constant_values=np.nan))
            relevant.append(np.pad(questions.relevant, dim))
        return type(self)(np.concatenate(scores), np.concatenate(relevant), np.concatenate([self.counts, other.counts]))

    def fractions(self, threshold: float) -> Float64[ndarray, " questions"]:
        """Return the fraction of each question's relevant passages that a threshold keeps."""
        kept: Float64[ndarray, " questions"] = (self.relevant & (self.scores >= threshold)).sum(axis=1) / self.counts
        return kept


@dataclass(frozen=True)
class PassagesKept:
    """Fraction of the relevant passages, and number of all passages, that a threshold keeps for some questions."""

    questions: int  # number of questions
    # Fraction of a question's relevant passages that is kept, averaged over questions. `low` and `high`
    # are its 95 % interval.
    fraction: float
    low: float
    high: float
    passages: float  # mean number of kept passages per question, whether relevant or not


def choose_kept_threshold(passages: RankedPassages, wanted: float) -> Threshold:
    """Choose the highest threshold that keeps, for a new question, the fraction `wanted` of its relevant passages on
    average. Raise `MetricInputError` if `wanted` is out of range, or if there is no question.

    Args:
        passages: ranked passages of at least one question.
        wanted: target value, above 0 and below 1.

    Returns:
        The threshold, which is the score of a passage. The target is out of reach if there are too few questions, or if
        too many relevant passages are outside the rankings. `Threshold.value` is then the largest possible fraction.
    """
    fewest_questions(1 - wanted)  # checks the range of `wanted`
    if not len(passages):
        raise MetricInputError("no question has an answer", "threshold", "give questions with an answer")
    weights = np.broadcast_to(1 / passages.counts[:, None], passages.relevant.shape)[passages.relevant]
    order = np.argsort(passages.scores[passages.relevant], kind="stable")
    scores, weights = passages.scores[passages.relevant][order].astype(np.float64), weights[order]
    lost = len(passages) - weights.sum() + np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    lost = lost[np.searchsorted(scores, scores)]  # passages of equal score are kept together
    enough = np.flatnonzero(lost + 1 <= (1 - wanted) * (len(passages) + 1) + 1e-9)
    if not len(enough):
        return Threshold(KEPT, wanted, float("inf"), False, float(weights.sum() / len(passages)))
    score = float(scores[enough[-1]])
    return Threshold(KEPT, wanted, score, True, float(passages.fractions(score).mean()))


def achieve_kept(passages: RankedPassages, threshold: float, worth: float = 1.0) -> PassagesKept:
    """Compute the fraction of relevant passages and the number of passages that a threshold keeps.

    Args:
        worth: n questions are treated as `worth` * n. Give less than 1 if the threshold was chosen on them.
    """
    fractions = passages.fractions(threshold)
    low, high = wilson_by_query(fractions, np.ones(len(fractions)), worth)
    count = float((passages.scores >= threshold).sum(axis=1).mean())
    return PassagesKept(len(passages), float(fractions.mean()), low, high, count)


def unreachable_kept(wanted: float, passages: RankedPassages) -> str:
    """Explain why a target fraction of the relevant passages is out of reach for some questions."""
    needed, count = fewest_questions(1 - wanted), len(passages)
    if count < needed:
        return f"{count:,} questions with an answer are too few: a fraction of {wanted:g} needs {needed:,}"
    lost = 1 - float(passages.fractions(-np.inf).mean())
    return f"{lost:.3f} of a question's relevant passages are, on average, not in its {passages.scores.shape[1]} best"
