"""Confidences: scores for the claim that the best document of a ranking is relevant. Higher is more confident.

- `score`: the highest score, s_1. Only a threshold of `score` means the same for all queries by design.
- `entropy`: the negative entropy of a softmax over the ranked scores of the query, divided by a temperature.
- `combined`: a logistic model of both, of the margin s_1 - s_2, and of BM25's results for the same query. These results
  are BM25's score of the best document, this score divided by BM25's highest score, BM25's margin, and whether both
  rankings have the same first document.

`score` is not fitted. The temperature of `entropy` is the median spread of the scores of some questions, without
judgements. `combined` is fitted to the right and wrong answers of some questions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray
from scipy.special import expit, logsumexp

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.selective_retrieval import area_under_risk_coverage

NAMES = SCORE, ENTROPY, COMBINED = ("score", "entropy", "combined")
# Maximum number of ranked scores that are read. The next 80 scores change the area under the risk-coverage curve by at
# most 0.002.
DEPTH = 20
# Temperature of the softmax. Its unit is the median over queries of the standard deviation of a query's ranked scores.
_TEMPERATURE = 0.5
FOLDS = 10
# Strength of the penalty on the squared weights of standardized features.
_PENALTY = 10.0


def confidences(scores: Float[ndarray, "queries depth"], temperature: float) -> dict[str, Float64[ndarray, " queries"]]:
    """Compute the confidences that depend only on a query's ranked scores: `score` and `entropy`.

    Args:
        scores: ranked scores, the highest first, at least two columns. Missing scores at the end are NaN: BM25 does not
            rank documents that have no term of the query. A missing score counts as 0.
        temperature: unit of the scores in the softmax, above 0.
    """
    filled = np.nan_to_num(scores.astype(np.float64), nan=0.0)
    logarithms = filled / temperature
    logarithms -= logsumexp(logarithms, axis=1, keepdims=True)
    return {SCORE: filled[:, 0], ENTROPY: (np.exp(logarithms) * logarithms).sum(axis=1)}


def combined_features(
    questions: RankedQuestions, depth: int, temperature: float
) -> Float64[ndarray, "questions features"]:
    """Return the features of `combined`, in the order of `FEATURES`. Raise `MetricInputError` without BM25's scores."""
    if questions.bm25 is None or questions.agrees is None:
        raise MetricInputError("the scores of BM25 are missing", COMBINED, "give BM25's scores of the questions")
    scores = questions.scores[:, :depth]
    ranked = confidences(scores, temperature)
    highest, second, of_best = questions.bm25.astype(np.float64).T
    return np.stack(
        [
            ranked[SCORE],
            ranked[SCORE] - np.nan_to_num(scores[:, 1].astype(np.float64), nan=0.0),
            ranked[ENTROPY],
            questions.agrees.astype(np.float64),
            of_best,
            of_best / np.maximum(highest, np.finfo(np.float32).tiny),
            highest - second,
        ],
        axis=1,
    )


FEATURES = (SCORE, "margin", ENTROPY, "same best document", "BM25 of the best document", "BM25 fraction", "BM25 margin")


@dataclass(frozen=True)
class RankedQuestions:
    """Ranked scores of questions, with judgements and BM25 scores of their best documents."""

    scores: Float[ndarray, "questions depth"]  # ranked scores, the highest first; NaN for a rank without a document
    # Whether the documents at the first ranks are relevant; at least one column.
    relevant: Bool[ndarray, "questions ranks"]
    kinds: ndarray  # kind of each question that has no answer in the corpus; empty for a question with an answer
    # BM25's highest and second highest score, and BM25's score of the best document; None without BM25.
    bm25: Float[ndarray, "questions 3"] | None = None
    agrees: Bool[ndarray, " questions"] | None = None  # whether BM25 ranks the same document first; None without BM25

    def __len__(self) -> int:
        return len(self.relevant)

    @property
    def right(self) -> Bool[ndarray, " questions"]:
        """True for questions whose best document is relevant."""
        return self.relevant[:, 0]

    @property
    def answerable(self) -> Bool[ndarray, " questions"]:
        """True for questions to which the corpus has an answer."""
        return self.kinds == ""

    def where(self, keep: ndarray) -> Self:
        """Return the questions that a mask or an array of indices selects."""
        columns: Iterable[Any] = vars(self).values()
        kept: list[Any] = [None if column is None else column[keep] for column in columns]
        return type(self)(*kept)

    def joined(self, other: Self) -> Self:
        """Return these questions, followed by those of another split."""
        pairs: Iterable[tuple[Any, Any]] = zip(vars(self).values(), vars(other).values(), strict=True)
        both: list[Any] = [None if left is None or two is None else np.concatenate([left, two]) for left, two in pairs]
        return type(self)(*both)


@dataclass(frozen=True)
class Confidence:
    """Confidence of a query, computed from its ranked scores."""

    name: str  # `combined`, or one of the names that `confidences` returns
    depth: int  # number of ranked scores that are read
    temperature: float  # unit of the scores in the softmax
    weights: tuple[float, ...] = ()  # weights of `FEATURES`; empty unless the confidence is `combined`
    intercept: float = 0.0  # added to the weighted sum; the result is the log-odds that the best document is relevant

    def __post_init__(self) -> None:
        expected = len(FEATURES) if self.name == COMBINED else 0
        numbers = (self.temperature, self.intercept, *self.weights)
        if self.name not in NAMES or len(self.weights) != expected or not np.isfinite(numbers).all():
            raise MetricInputError(f"{self.name!r} has invalid parameters", "confidence", "fit the confidence again")
        if self.temperature <= 0 or self.depth < 2:
            raise MetricInputError("the temperature or the depth is too low", "confidence", "fit the confidence again")

    @property
    def reads_bm25(self) -> bool:
        """True if scores of BM25 are also needed."""
        return self.name == COMBINED

    def of(self, questions: RankedQuestions) -> Float64[ndarray, " questions"]:
        """Return the confidence of each question; -inf if no document was found for it."""
        if self.reads_bm25:
            values = (
                combined_features(questions, self.depth, self.temperature) @ np.array(self.weights) + self.intercept
            )
        else:
            values = confidences(questions.scores[:, : self.depth], self.temperature)[self.name]
        return np.where(np.isnan(questions.scores[:, 0]), -np.inf, values)


def fit_confidence(name: str, questions: RankedQuestions) -> Confidence:
    """Fit a confidence. The temperature depends only on the scores. For `combined`, also fit the weights. The
    weights are those of a logistic regression of `right` on the standardized features, with a penalty of 5 Σ w²."""
    if name not in NAMES:
        raise MetricInputError(f"{name!r} is unknown", "confidence", f"give one of {', '.join(NAMES)}")
    depth = min(DEPTH, questions.scores.shape[1])
    found = questions.scores[~np.isnan(questions.scores[:, 0]), :depth].astype(np.float64)
    spread = float(np.median(np.nanstd(found, axis=1))) if len(found) else 0.0
    temperature = _TEMPERATURE * spread if np.isfinite(spread) and spread > 0 else 1.0
    if name != COMBINED:
        return Confidence(name, depth, temperature)
    weights, intercept = _logistic(combined_features(questions, depth, temperature), questions.right)
    return Confidence(name, depth, temperature, tuple(weights.tolist()), intercept)


def folds_of(count: int) -> Int64[ndarray, " questions"]:
    """Return the cross-validation fold of each question, after a fixed shuffle."""
    return np.random.default_rng(0).permutation(count) % FOLDS


def held_out_confidence(name: str, questions: RankedQuestions) -> Float64[ndarray, " questions"]:
    """Return the confidence of each question. If weights are fitted, they are fitted without the question's fold."""
    if name != COMBINED:
        return fit_confidence(name, questions).of(questions)
    fold, values = folds_of(len(questions)), np.empty(len(questions))
    for number in range(FOLDS):
        fitted = fit_confidence(name, questions.where(fold != number))
        values[fold == number] = fitted.of(questions.where(fold == number))
    return values


def area_of(confidence: Float64[ndarray, " questions"], questions: RankedQuestions) -> float:
    """Return the area under the risk-coverage curve; see `selective_retrieval.area_under_risk_coverage`."""
    return float(area_under_risk_coverage(confidence, questions.right)[0])


def _logistic(features: ndarray, right: ndarray) -> tuple[Float64[ndarray, " features"], float]:
    """Fit a penalized logistic regression. Return the weights of the unstandardized features, and the intercept."""
    middle, spread = features.mean(axis=0), features.std(axis=0)
    spread[spread == 0] = 1.0
    inputs, targets = np.c_[(features - middle) / spread, np.ones(len(features))], np.asarray(right, np.float64)
    # Add half a right and half a wrong answer: without both kinds, the intercept would be infinite.
    fraction = (targets.sum() + 0.5) / (len(targets) + 1)
    start = np.append(np.zeros(features.shape[1]), np.log(fraction / (1 - fraction)))
    if targets.min() == targets.max():
        return start[:-1], float(start[-1])
    found = least_log_loss(inputs, targets, start, np.append(np.full(features.shape[1], _PENALTY), 0.0) / len(targets))
    weights = found[:-1] / spread
    return weights, float(found[-1] - weights @ middle)


def least_log_loss(
    inputs: Float64[ndarray, "cases features"], targets: ndarray, start: ndarray, penalty: ndarray | float = 0.0
) -> Float64[ndarray, " features"]:
    """Return the weights of the logistic model that minimizes the mean log loss plus the sum of half of each penalty
    times the weight's square."""
    from scipy.optimize import minimize

    def loss(weights: ndarray) -> float:
        odds = inputs @ weights
        return float((np.logaddexp(0, odds) - targets * odds).mean() + (penalty * weights**2).sum() / 2)

    def gradient(weights: ndarray) -> ndarray:
        return inputs.T @ (expit(inputs @ weights) - targets) / len(targets) + penalty * weights

    def curvature(weights: ndarray) -> ndarray:
        fractions = expit(inputs @ weights)
        return (inputs.T * (fractions * (1 - fractions))) @ inputs / len(targets) + np.diag(
            np.zeros(len(weights)) + penalty
        )

    weights: ndarray = minimize(loss, start, jac=gradient, hess=curvature, method="trust-exact", tol=1e-9).x
    return weights
