"""Monotone maps from a score to the probability that the passage is relevant, and the calibration error of maps.

`fit_platt` fits a logistic curve of two parameters (Platt, 1999), `fit_isotonic` a monotone curve of any shape
(Zadrozny & Elkan, 2002). The logistic curve needs fewer pairs.

`calibration_error` measures, on other pairs, how far probabilities are from the true proportions. The usual estimate
(Guo et al., 2017) is a sum of absolute differences, which is never 0: for 50 queries, even perfect probabilities have
an error of 0.18. Here the squared error is estimated without bias, as by Kumar, Liang & Ma (2019): from products of
differences of two queries. For the interval, whole queries are resampled. `benchmarks/interval_coverage.py`
measures how often the interval contains the true error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray
from scipy.special import expit

from raytriever.core.reading.json_and_yaml import conform
from raytriever.metrics.answer_confidence import least_log_loss
from raytriever.metrics.metric_inputs import MetricInputError, check_queries, scores_of
from raytriever.metrics.pair_threshold import ScoredPools
from raytriever.metrics.selective_retrieval import BLOCK, bootstrap_interval

BINS = 15
# With fewer queries per bin, the estimate of each bin is inaccurate, and so is the sum over the bins.
QUERIES_PER_BIN = 10
_SAMPLES, _SEED = 1_000, 0
_ERROR = "calibration error"


@dataclass(frozen=True)
class CalibrationError:
    """Root of the mean squared calibration error, with its interval.

    Args:
        value: 0 to 1; 0 if the estimate of the squared error is at most 0, NaN if no bin has pairs of two queries.
        low: lower bound of the interval; 0 means that the probabilities may be perfect.
        high: upper bound of the interval.

    Examples:
        >>> rt.metrics.calibration_error(np.full(40, 0.5), np.arange(40) % 2 == 0).value
        0.0
    """

    value: float
    low: float
    high: float


def calibration_error(
    probabilities: Float[ndarray, " pairs"],
    relevant: Bool[ndarray, " pairs"],
    queries: Int64[ndarray, " pairs"] | None = None,
    confidence: float = 0.95,
) -> CalibrationError:
    """Estimate the calibration error of probabilities.

        error² = Σ_b (n_b / n) mean_{i ≠ j} d_i d_j,   d = probability - relevant, of two pairs i and j of bin b

    There are 15 bins, but at most one per 10 queries. Each has the same number of pairs. Equal probabilities are in the
    same bin, so there may be fewer bins. Only pairs of different queries are multiplied, so that the noise of a single
    query is not measured as an error of the map.

    Args:
        probabilities: probability of relevance of each pair, 0 to 1. The map must not have been fitted on these pairs.
        relevant: whether each pair is relevant.
        queries: number of the query of each pair, from 0; by default each pair has its own query.
        confidence: confidence of the interval (percentiles of 1,000 resamples of the queries).

    Raises:
        MetricInputError: there is no pair, a probability is not finite, or the lengths differ.

    Examples:
        >>> right = np.arange(200) % 4 == 0
        >>> error = rt.metrics.calibration_error(np.full(200, 0.5), right)
        >>> round(error.value, 2), bool(error.low > 0.15)
        (0.25, True)
    """
    probabilities, relevant = checked_pairs(probabilities, relevant, _ERROR)
    queries = np.arange(len(relevant)) if queries is None else queries
    check_queries(queries, relevant, _ERROR)
    bins = _bins(len(np.unique(queries)))
    edges = _edges(probabilities, bins)
    return _estimate(np.searchsorted(edges, probabilities, "right"), probabilities - relevant, queries, confidence)


def calibration_error_of_scores(choosing: ScoredPools, checking: ScoredPools) -> CalibrationError:
    """Estimate the calibration error of scores as probabilities of relevance.

    The scores of the choosing split are divided into bins of equal size. The fraction of positives in a bin is the
    probability that a pair with such a score is relevant (histogram binning: Zadrozny & Elkan, 2001). The checking
    split tests these probabilities; see `calibration_error`. Scores outside the range of the choosing split belong to
    its first or last bin. The pools of both splits must be made in the same way."""
    pools = [scores_of(pool, "scores") for pool in (choosing.positives, choosing.negatives)]
    others = [scores_of(pool, "scores") for pool in (checking.positives, checking.negatives)]
    scores = np.concatenate(others)
    if not sum(map(len, pools)) or not len(scores):
        raise MetricInputError("there are no scores", _ERROR, "give at least one for each split")
    queries = np.arange(len(scores))
    if checking.positive_queries is not None and checking.negative_queries is not None:
        queries = np.concatenate([checking.positive_queries, checking.negative_queries])
        check_queries(queries, scores, _ERROR)
    edges = _edges(np.concatenate(pools), _bins(len(np.unique(queries))))
    chosen = [np.bincount(np.searchsorted(edges, pool, "right"), minlength=len(edges) + 1) for pool in pools]
    # A bin without scores of the choosing split gets 0. Only the bin below that split's lowest score can be one.
    fraction = chosen[0] / np.maximum(chosen[0] + chosen[1], 1)
    bin_of, relevant = np.searchsorted(edges, scores, "right"), np.arange(len(scores)) < len(others[0])
    return _estimate(bin_of, fraction[bin_of] - relevant, queries)


def checked_pairs(
    scores: ndarray, relevant: ndarray, where: str
) -> tuple[Float64[ndarray, " pairs"], Bool[ndarray, " pairs"]]:
    """Check and return scores of pairs as float64, and relevance as booleans."""
    scores, relevant = scores_of(scores, where).astype(np.float64), np.asarray(relevant)
    if relevant.shape != scores.shape or not len(scores):
        what = f"there are {len(scores):,} scores, and the shape of the relevance is {relevant.shape}"
        raise MetricInputError(what, where, "give both for at least one pair")
    if not np.isfinite(scores).all():
        raise MetricInputError("a score is infinite", where, "leave out its pair")
    return scores, relevant.astype(bool)


def _bins(queries: int) -> int:
    return max(1, min(BINS, queries // QUERIES_PER_BIN))


def _edges(values: ndarray, bins: int) -> ndarray:
    """Return the lower edge of each bin except the first. The bins have the same number of values."""
    return np.unique(np.sort(values)[np.arange(1, bins) * len(values) // bins])


def _estimate(bin_of: ndarray, differences: ndarray, queries: ndarray, confidence: float = 0.95) -> CalibrationError:
    sums, counts = _by_query(bin_of, differences, queries)
    rng, count = np.random.default_rng(_SEED), len(sums)
    rows, fractions = max(1, BLOCK // count), np.full(count, 1 / count)
    blocks = (min(rows, _SAMPLES - start) for start in range(0, _SAMPLES, rows))
    samples = np.concatenate([_squared(sums, counts, 1.0 * rng.multinomial(count, fractions, size)) for size in blocks])
    value, bounds = _squared(sums, counts, np.ones((1, count)))[0], bootstrap_interval(samples, confidence)
    if not np.isfinite([value, *bounds]).all():
        return CalibrationError(float("nan"), float("nan"), float("nan"))
    return CalibrationError(*(float(np.sqrt(max(0.0, bound))) for bound in (value, *bounds)))


def _by_query(
    bin_of: ndarray, differences: ndarray, queries: ndarray
) -> tuple[Float64[ndarray, "queries bins"], Float64[ndarray, "queries bins"]]:
    """Return, for each query and bin, the sum of the differences and the number of pairs."""
    rows = np.unique(queries, return_inverse=True)[1]
    shape = int(rows.max()) + 1, int(bin_of.max()) + 1
    cells, size = rows * shape[1] + bin_of, shape[0] * shape[1]
    sums, counts = np.bincount(cells, differences, size), np.bincount(cells, minlength=size).astype(np.float64)
    return sums.reshape(shape), counts.reshape(shape)


def _squared(sums: ndarray, counts: ndarray, weights: ndarray) -> Float64[ndarray, " samples"]:
    """Return the squared error of each sample; NaN if no bin has pairs of more than one query."""
    numbers, squares = weights @ counts, weights**2
    products = (weights @ sums) ** 2 - squares @ sums**2  # all products, minus products of a query with itself
    pairs = numbers**2 - squares @ counts**2
    usable = pairs > 0.5  # numbers of pairs are whole, except for rounding
    with np.errstate(invalid="ignore"):
        of_bins = np.where(usable, numbers * products / np.where(usable, pairs, 1), 0)
        return np.asarray(of_bins.sum(axis=1) / np.where(usable, numbers, 0).sum(axis=1))


# A map with more knots comes from a damaged file: even a fit of a million pairs has fewer.
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
        """Return the parameters as values that JSON stores exactly."""
        return asdict(self)  # type: ignore[call-overload]  # every map is a dataclass

    @staticmethod
    def from_json(content: object, where: str = "map of scores") -> ScoreMap:
        """Return the map with the parameters of `to_json`.

        Args:
            content: the parameters.
            where: file of the parameters, for messages.

        Raises:
            MetricInputError: a parameter is missing, unknown or not finite, or the map is not monotone.
        """
        method = content.get("method") if isinstance(content, dict) else None
        kind = IsotonicMap if method == "isotonic" else PlattMap
        return conform(content, where, kind, "fit it again", MetricInputError)


@dataclass(frozen=True)
class IsotonicMap(ScoreMap):
    """Map that is linear between ascending knots. Scores outside the knots have the probability of the nearest knot."""

    scores: list[float]
    probabilities: list[float]
    method: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        scores, probabilities = np.array(self.scores, np.float64), np.array(self.probabilities, np.float64)
        if not 1 <= len(scores) == len(probabilities) <= MOST_KNOTS:
            raise _wrong(f"it has {len(scores):,} scores and {len(probabilities):,} probabilities")
        is_monotone = bool((np.diff(scores) > 0).all() and (np.diff(probabilities) >= 0).all())
        # The condition is also false if a value is NaN.
        if not (is_monotone and np.isfinite(scores).all() and probabilities[0] >= 0 and probabilities[-1] <= 1):
            raise _wrong("its knots do not ascend, or a probability is below 0 or above 1")

    def probability(self, scores: Float[ndarray, " scores"]) -> Float64[ndarray, " scores"]:
        """Return the probability of each score, 0 to 1."""
        return np.interp(scores_of(scores, _SCORES), self.scores, self.probabilities)


@dataclass(frozen=True)
class PlattMap(ScoreMap):
    """Logistic curve, 1 / (1 + exp(-(slope * score + intercept))), with a slope of at least 0."""

    slope: float
    intercept: float
    method: Literal["platt"] = "platt"

    def __post_init__(self) -> None:
        if not (0 <= self.slope < np.inf and np.isfinite(self.intercept)):
            raise _wrong(f"slope {self.slope} and intercept {self.intercept}")

    def probability(self, scores: Float[ndarray, " scores"]) -> Float64[ndarray, " scores"]:
        """Return the probability of each score, 0 to 1."""
        scores = scores_of(scores, _SCORES).astype(np.float64)
        flat = np.full(len(scores), expit(self.intercept))
        return expit(self.slope * scores + self.intercept) if self.slope else flat


def fit_isotonic(scores: Float[ndarray, " pairs"], relevant: Bool[ndarray, " pairs"]) -> IsotonicMap:
    """Fit the monotone map with the least squared error (pool adjacent violators).

    Equal scores have the same probability. Only the ends of constant parts are knots. The lowest and highest
    probabilities are often exactly 0 and 1. With few pairs, `fit_platt` is the better choice.

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
    fractions = np.bincount(which, relevant) / counts
    fitted = np.clip(np.maximum.accumulate(isotonic_regression(fractions, weights=counts).x), 0, 1)
    steps = np.diff(fitted) != 0
    ends = np.append(True, steps) | np.append(steps, True)
    return IsotonicMap(knots[ends].tolist(), fitted[ends].tolist())


def fit_platt(scores: Float[ndarray, " pairs"], relevant: Bool[ndarray, " pairs"]) -> PlattMap:
    """Fit the logistic curve with the highest likelihood for Platt's smoothed targets.

    For P relevant and N other pairs, the targets are (P + 1) / (P + 2) and 1 / (N + 2). So the slope is finite even if
    a threshold separates relevant from other pairs. If higher scores are relevant less often, the curve is flat.

    Args:
        scores: scores of pairs of a query and a passage, in any order.
        relevant: whether each pair is relevant.

    Raises:
        MetricInputError: there is no pair, a score is not finite, or the lengths differ.

    Examples:
        >>> rt.metrics.fit_platt(np.array([0.2, 0.4, 0.6, 0.8]), np.array([False, False, True, True])).slope > 0
        True
    """
    scores, relevant = checked_pairs(scores, relevant, _WHERE)
    positives, pairs = int(relevant.sum()), len(scores)
    targets = np.where(relevant, (positives + 1) / (positives + 2), 1 / (pairs - positives + 2))
    middle, spread = float(scores.mean()), float(scores.std())
    inputs = np.stack([(scores - middle) / (spread or 1.0), np.ones(pairs)], axis=1)
    level = float(np.log(targets.sum() / (1 - targets).sum()))
    # The likelihood is concave: if it does not rise with the slope at 0, no slope above 0 is better.
    if spread == 0 or inputs[:, 0] @ (expit(level) - targets) >= 0:
        return PlattMap(0.0, level)
    slope, intercept = least_log_loss(inputs, targets, np.array([0.0, level]))
    return PlattMap(float(slope) / spread, float(intercept - slope * middle / spread))


def _wrong(what: str) -> MetricInputError:
    return MetricInputError(what, _WHERE, "fit it again")
