"""Monotone maps from a score to the probability that the scored passage is relevant.

`fit_platt` fits a logistic curve of two parameters (Platt, 1999), `fit_isotonic` a monotone curve of any shape
(Zadrozny & Elkan, 2002). The logistic curve needs fewer pairs. `calibration_error` measures a map on
other pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray
from scipy.special import expit

from raytriever.metrics.inputs import MetricInputError, scores_of
from raytriever.metrics.miscalibration import checked_pairs
from raytriever.reading.structured import conform

# More knots than any fit of a million pairs has; a longer file is damaged.
MOST_KNOTS = 100_000
_SCORES = "scores of the map"
_WHERE = "map of scores"


class ScoreMap(ABC):
    """Monotone map from a score to a probability: a higher score never has a lower probability.

    Examples:
        >>> curve = rt.metrics.fit_platt(np.array([0.2, 0.4, 0.6, 0.8]), np.array([False, False, True, True]))
        >>> curve.probability(np.array([0.3, 0.7])).round(2)
        array([0.29, 0.71])
        >>> rt.metrics.ScoreMap.from_json(curve.to_json()) == curve
        True
    """

    @abstractmethod
    def probability(self, scores: Float[ndarray, " scores"]) -> Float64[ndarray, " scores"]:
        """Return the probability of each score, 0 to 1.

        Args:
            scores: any scores but NaN.

        Raises:
            MetricInputError: a score is NaN.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as values that JSON holds without a change."""
        return asdict(self)  # type: ignore[call-overload]  # every map is a dataclass

    @staticmethod
    def from_json(content: object, where: str = "map of scores") -> ScoreMap:
        """Return the map with the parameters of `to_json`.

        Args:
            content: the parameters.
            where: their file, for messages.

        Raises:
            MetricInputError: a parameter is missing, unknown, not finite, or the map is not monotone.
        """
        remedy, wrong = "fit it again", "is no map of scores"
        method = content.get("method") if isinstance(content, dict) else None
        kind = IsotonicMap if method == "isotonic" else PlattMap
        return conform(content, where, kind, remedy, wrong, MetricInputError)


@dataclass(frozen=True)
class IsotonicMap(ScoreMap):
    """Map with straight lines between knots; scores outside have the probability of the nearest knot.

    Args:
        scores: scores of the knots, ascending.
        probabilities: their probabilities, not descending.
    """

    scores: list[float]
    probabilities: list[float]
    method: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        scores, probabilities = np.array(self.scores, np.float64), np.array(self.probabilities, np.float64)
        if not 1 <= len(scores) == len(probabilities) <= MOST_KNOTS:
            raise _wrong(f"{len(scores):,} scores and {len(probabilities):,} probabilities")
        is_monotone = bool((np.diff(scores) > 0).all() and (np.diff(probabilities) >= 0).all())
        # A comparison with NaN is false.
        if not (is_monotone and np.isfinite(scores).all() and probabilities[0] >= 0 and probabilities[-1] <= 1):
            raise _wrong("knots that do not ascend, or a probability below 0 or above 1")

    def probability(self, scores: Float[ndarray, " scores"]) -> Float64[ndarray, " scores"]:
        """Return the probability of each score, 0 to 1."""
        return np.interp(scores_of(scores, _SCORES), self.scores, self.probabilities)


@dataclass(frozen=True)
class PlattMap(ScoreMap):
    """Logistic curve, 1 / (1 + exp(-(slope * score + intercept))).

    Args:
        slope: change of the log-odds per unit of score, at least 0.
        intercept: log-odds of a score of 0.
    """

    slope: float
    intercept: float
    method: Literal["platt"] = "platt"

    def __post_init__(self) -> None:
        if not (0 <= self.slope < np.inf and np.isfinite(self.intercept)):
            raise _wrong(f"slope {self.slope} and intercept {self.intercept}")

    def probability(self, scores: Float[ndarray, " scores"]) -> Float64[ndarray, " scores"]:
        """Return the probability of each score, 0 to 1."""
        scores = scores_of(scores, _SCORES).astype(np.float64)
        return (
            expit(self.slope * scores + self.intercept) if self.slope else np.full(len(scores), expit(self.intercept))
        )


def fit_isotonic(scores: Float[ndarray, " pairs"], relevant: Bool[ndarray, " pairs"]) -> IsotonicMap:
    """Fit the monotone map of the least squared error (pool adjacent violators).

    Equal scores have one probability. Only the ends of level parts are knots. The lowest and highest probability are
    often exactly 0 and 1; with few pairs, `fit_platt` is the better map.

    Args:
        scores: scores of pairs of a query and a passage, in any order.
        relevant: whether each pair is relevant.

    Raises:
        MetricInputError: there is no pair, a score is not finite, or the lengths differ.

    Examples:
        >>> scores, relevant = np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, True, False, True])
        >>> rt.metrics.fit_isotonic(scores, relevant).probability(np.array([0.1, 0.25, 0.35]))
        array([0.  , 0.5 , 0.75])
    """
    from scipy.optimize import isotonic_regression

    scores, relevant = checked_pairs(scores, relevant, _WHERE)
    knots, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    shares = np.bincount(which, relevant) / counts
    fitted = np.clip(np.maximum.accumulate(isotonic_regression(shares, weights=counts).x), 0, 1)
    steps = np.diff(fitted) != 0
    ends = np.append(True, steps) | np.append(steps, True)
    return IsotonicMap(knots[ends].tolist(), fitted[ends].tolist())


def fit_platt(scores: Float[ndarray, " pairs"], relevant: Bool[ndarray, " pairs"]) -> PlattMap:
    """Fit the logistic curve of the highest likelihood, with Platt's smoothed targets.

    Of P relevant and N other pairs, the targets are (P + 1) / (P + 2) and 1 / (N + 2). So the curve is finite even if a
    score separates all pairs. If higher scores are relevant less often, the curve is level.

    Args:
        scores: scores of pairs of a query and a passage, in any order.
        relevant: whether each pair is relevant.

    Raises:
        MetricInputError: there is no pair, a score is not finite, or the lengths differ.

    Examples:
        >>> rt.metrics.fit_platt(np.array([0.2, 0.4, 0.6, 0.8]), np.array([False, False, True, True])).slope > 0
        True
    """
    from scipy.optimize import minimize

    scores, relevant = checked_pairs(scores, relevant, _WHERE)
    positives, pairs = int(relevant.sum()), len(scores)
    targets = np.where(relevant, (positives + 1) / (positives + 2), 1 / (pairs - positives + 2))
    middle, spread = float(scores.mean()), float(scores.std())
    inputs = np.stack([(scores - middle) / (spread or 1.0), np.ones(pairs)])

    def loss(weights: ndarray) -> float:
        odds = weights @ inputs
        return float((np.logaddexp(0, odds) - targets * odds).mean())

    def gradient(weights: ndarray) -> ndarray:
        return inputs @ (expit(weights @ inputs) - targets) / pairs

    def curvature(weights: ndarray) -> ndarray:
        shares = expit(weights @ inputs)
        return (inputs * (shares * (1 - shares))) @ inputs.T / pairs

    level = float(np.log(targets.sum() / (1 - targets).sum()))
    if spread == 0 or gradient(np.array([0.0, level]))[0] >= 0:  # the likelihood is concave: no slope above 0 is better
        return PlattMap(0.0, level)
    slope, intercept = minimize(loss, [0.0, level], jac=gradient, hess=curvature, method="trust-exact", tol=1e-9).x
    return PlattMap(float(slope) / spread, float(intercept - slope * middle / spread))


def _wrong(what: str) -> MetricInputError:
    return MetricInputError(what, _WHERE, "fit it again")
