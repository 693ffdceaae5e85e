"""Calibration error: its definition, no bias, intervals that cover, and queries with several pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy import ndarray
from scipy.special import expit

from raytriever.metrics.calibration import ScoredPools
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.probability import (
    calibration_error,
    calibration_error_of_scores,
    squared_calibration_error,
)


def by_loop(bin_of: ndarray, differences: ndarray, queries: ndarray) -> float:
    """Squared error by its definition, a loop over the pairs of pairs."""
    total, counted = 0.0, 0
    for one in np.unique(bin_of):
        rows = np.flatnonzero(bin_of == one)
        products = [
            differences[i] * differences[j] for i, j in itertools.permutations(rows, 2) if queries[i] != queries[j]
        ]
        if products:
            total, counted = total + len(rows) * float(np.mean(products)), counted + len(rows)
    return total / counted


def draw(seed: int, queries: int, slope: float = 1.0, shift: float = 0.0) -> tuple[ndarray, ndarray, ndarray]:
    """Probabilities, whether each is right, and the true probabilities."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 1.5, queries)
    true = expit(slope * scores + shift)
    return expit(scores), rng.random(queries) < true, true


def test_the_error_by_its_definition() -> None:
    rng = np.random.default_rng(0)
    queries = np.repeat(np.arange(40), rng.integers(1, 5, 40))
    probabilities = rng.random(len(queries))
    relevant = rng.random(len(queries)) < probabilities**3
    ordered = np.sort(probabilities)
    bin_of = np.searchsorted(
        ordered[[len(ordered) // 4, len(ordered) // 2, 3 * len(ordered) // 4]], probabilities, "right"
    )
    expected = by_loop(bin_of, probabilities - relevant, queries)
    assert calibration_error(probabilities, relevant, queries).value == pytest.approx(np.sqrt(expected))


def test_the_squared_error_of_samples() -> None:
    probabilities, right, _ = draw(0, 60, 0.3, 1.0)
    expected = calibration_error(probabilities, right).value ** 2
    assert squared_calibration_error(probabilities, right) == pytest.approx(expected)
    weights = np.ones((2, 60))
    weights[1, :20] = 0
    ordered = np.sort(probabilities)
    bin_of = np.searchsorted(ordered[np.arange(1, 6) * 10], probabilities, "right")[20:]
    one = by_loop(bin_of, (probabilities - right)[20:], np.arange(40))
    assert squared_calibration_error(probabilities, right, weights)[1] == pytest.approx(one)


@pytest.mark.parametrize("queries", [50, 300])
def test_right_probabilities_have_no_error(queries: int) -> None:
    """The usual estimate has a mean of 0.18 with 50 queries, and 0.07 with 300."""
    squared = [squared_calibration_error(*draw(seed, queries)[:2])[0] for seed in range(2_000)]
    assert abs(np.mean(squared)) < 3 * np.std(squared) / np.sqrt(2_000)


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (1.0, 0.2), (0.6, 0.3), (0.5, 1.0)])
def test_the_interval_covers(slope: float, shift: float) -> None:
    covered = 0
    for seed in range(100):
        probabilities, right, true = draw(seed, 124, slope, shift)
        ordered = np.sort(probabilities)
        bin_of = np.searchsorted(ordered[np.arange(1, 12) * 124 // 12], probabilities, "right")
        sums = np.bincount(bin_of, probabilities - true)
        truth = float(np.sqrt((sums**2 / np.bincount(bin_of)).sum() / 124))
        error = calibration_error(probabilities, right)
        covered += error.low <= truth <= error.high
    assert covered >= 90


def test_pairs_of_one_query_count_once() -> None:
    """A query that is repeated tells nothing new, so the interval stays as wide."""
    probabilities, right, _ = draw(3, 200, 0.5, 1.0)
    alone = calibration_error(probabilities, right)
    again = calibration_error(*(np.repeat(one, 10) for one in (probabilities, right, np.arange(200))))
    assert again.value == pytest.approx(alone.value, abs=0.02)
    assert again.high - again.low > 0.8 * (alone.high - alone.low)


def test_the_error_of_scores_by_hand() -> None:
    # One bin: the share of positives is 1/2 where learnt.
    choosing = ScoredPools(np.array([3.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]))
    checking = ScoredPools(np.array([-7.0]), np.array([1.0, 2.0, 2.0, 2.5]))
    differences = np.array([-0.5, 0.5, 0.5, 0.5, 0.5])
    expected = by_loop(np.zeros(5), differences, np.arange(5))
    assert calibration_error_of_scores(choosing, checking).value == pytest.approx(np.sqrt(expected))
    of_one_query = ScoredPools(checking.positives, checking.negatives, np.zeros(1, np.int64), np.zeros(4, np.int64))
    assert np.isnan(calibration_error_of_scores(choosing, of_one_query).value)


def test_shifted_scores_have_a_larger_error() -> None:
    def split(seed: int, shift: float) -> ScoredPools:
        rng = np.random.default_rng(seed)
        return ScoredPools(rng.normal(1 + shift, 1, 2_000), rng.normal(shift, 1, 2_000))

    alike, moved = (calibration_error_of_scores(split(0, 0), split(seed, by)) for seed, by in ((1, 0.0), (2, 1.0)))
    assert alike.value < 0.03 < 0.05 < moved.low


def test_wrong_inputs_are_refused() -> None:
    for probabilities, right, queries, why in (
        ([], [], None, "at least one pair"),
        ([0.1], [True, False], None, "1 scores and relevance of shape"),
        ([np.nan, 0.1], [True, False], None, "NaN"),
        ([0.2, 0.1], [True, False], [0], "some scores have no query"),
    ):
        given = None if queries is None else np.array(queries)
        with pytest.raises(MetricInputError, match=why):
            calibration_error(np.array(probabilities), np.array(right), given)
    with pytest.raises(MetricInputError, match="no scores"):
        calibration_error_of_scores(ScoredPools(np.array([]), np.array([])), ScoredPools(np.ones(1), np.ones(1)))
