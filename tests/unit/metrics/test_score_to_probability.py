"""Maps from score to probability against scikit-learn, their files, and the calibration error with its interval."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy import ndarray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.pair_threshold import ScoredPools
from raytriever.metrics.score_to_probability import (
    IsotonicMap,
    ScoreMap,
    calibration_error,
    calibration_error_of_scores,
    fit_isotonic,
    fit_platt,
)


def pairs_of(seed: int, count: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rounded scores with ties, and relevance that grows with the score."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=count), 1)
    return scale * scores.astype(np.float32), rng.random(count) < 1 / (1 + np.exp(-2 * scores))


def stored(curve: ScoreMap) -> ScoreMap:
    """Return the map as it is read from a file."""
    again = ScoreMap.from_json(json.loads(json.dumps(curve.to_json())))
    assert again == curve
    return again


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 200), scale=st.sampled_from([1e-3, 1.0, 300.0]))
def test_the_isotonic_map_equals_scikit_learn(seed: int, count: int, scale: float) -> None:
    scores, relevant = pairs_of(seed, count, scale)
    where = np.linspace(-4, 4, 50) * scale
    theirs = IsotonicRegression(out_of_bounds="clip").fit(scores.astype(np.float64), relevant)
    ours = stored(fit_isotonic(scores, relevant))
    assert ours.probability(where) == pytest.approx(theirs.predict(where), abs=1e-9)
    assert ours.probability(np.array([-np.inf, np.inf])) == pytest.approx(theirs.predict(where[[0, -1]] * 99), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_logistic_curve_equals_scikit_learn(seed: int) -> None:
    scores, relevant = pairs_of(seed, 150, scale=[1.0, 0.01, 50.0][seed % 3])
    scores = scores + np.float32([0.0, 0.5][seed % 2])
    positives, negatives = relevant.sum(), (~relevant).sum()
    targets = np.where(relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    inputs = ((scores - scores.mean()) / scores.std())[:, None].astype(np.float64)
    theirs = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(
        np.concatenate([inputs, inputs]), np.repeat([1, 0], len(scores)), np.concatenate([targets, 1 - targets])
    )
    ours = stored(fit_platt(scores, relevant)).probability(scores)
    assert ours == pytest.approx(theirs.predict_proba(inputs)[:, 1], abs=1e-6)


def test_a_separating_score_gives_a_finite_curve_and_a_falling_one_a_level_curve() -> None:
    scores = np.linspace(0, 1, 40)
    apart = fit_platt(scores, scores > 0.5)
    assert np.isfinite(apart.slope)
    # The likelihood is highest where the mean probability is the mean target.
    assert apart.probability(scores).mean() == pytest.approx((20 * 21 / 22 + 20 / 22) / 40)
    assert 0 < apart.probability(scores[:1])[0] < 1 / 22
    falling = fit_platt(scores, scores < 0.5)
    assert falling.slope == 0
    assert falling.probability(np.array([-np.inf, np.inf])) == pytest.approx([0.5, 0.5])
    assert fit_platt(np.full(9, 0.3), np.arange(9) < 3).slope == 0
    assert fit_platt(scores, np.ones(40, bool)).probability(scores[:1])[0] == pytest.approx(41 / 42)


@pytest.mark.parametrize(
    "content",
    [
        *(
            {"method": "isotonic", "scores": scores, "probabilities": probabilities}
            for scores, probabilities in (
                ([], []),
                ([0.1, 0.2], [0.5]),
                ([0.2, 0.1], [0.5, 0.6]),
                ([0.1, 0.2], [0.6, 0.5]),
                ([0.1, float("inf")], [0.5, 0.6]),
                ([0.1, float("nan"), 0.3], [0.5, 0.6, 0.7]),
                ([0.1, 0.2], [float("nan"), 0.6]),
                ([0.1], [1.5]),
            )
        ),
        {"method": "platt", "slope": -1.0, "intercept": 0.0},
        {"method": "platt", "slope": 1.0, "intercept": float("nan")},
        {"method": "platt", "slope": float("inf"), "intercept": 0.0},
        {"method": "platt", "slope": 1.0},
        {"method": "platt", "slope": 1.0, "intercept": 0.0, "more": 1},
        {"method": "beta", "slope": 1.0, "intercept": 0.0},
        [1, 2],
    ],
)
def test_a_map_that_is_damaged_is_refused(content: Any) -> None:
    with pytest.raises(MetricInputError, match="map of scores"):
        ScoreMap.from_json(content)


def test_only_the_ends_of_level_parts_are_knots() -> None:
    assert fit_isotonic(np.arange(6.0), np.arange(6) > 2) == IsotonicMap([0.0, 2.0, 3.0, 5.0], [0.0, 0.0, 1.0, 1.0])
    scores, relevant = pairs_of(0, 20_000)
    assert len(fit_isotonic(scores, relevant).scores) <= len(np.unique(scores))


@pytest.mark.parametrize("fit", [fit_isotonic, fit_platt])
def test_pairs_that_cannot_be_fitted_are_refused(fit: Any) -> None:
    for scores, relevant, why in (
        ([], [], "at least one pair"),
        ([0.1], [True, False], "1 scores, and the shape of the relevance"),
        ([np.nan, 0.1], [True, False], "NaN"),
        ([np.inf, 0.1], [True, False], "infinite"),
    ):
        with pytest.raises(MetricInputError, match=why):
            fit(np.array(scores), np.array(relevant))


def by_loop(bin_of: ndarray, differences: ndarray, queries: ndarray) -> float:
    """Squared error by its definition, a loop over the pairs of pairs."""
    total, counted = 0.0, 0
    for value in np.unique(bin_of):
        rows = np.flatnonzero(bin_of == value)
        products = [
            differences[i] * differences[j] for i, j in itertools.permutations(rows, 2) if queries[i] != queries[j]
        ]
        if products:
            total, counted = total + len(rows) * float(np.mean(products)), counted + len(rows)
    return total / counted


def sample(seed: int, queries: int, slope: float = 1.0, shift: float = 0.0) -> tuple[ndarray, ndarray, ndarray]:
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


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (0.6, 0.3)])
def test_the_interval_covers(slope: float, shift: float) -> None:
    covered = 0
    for seed in range(100):
        probabilities, right, true = sample(seed, 124, slope, shift)
        ordered = np.sort(probabilities)
        bin_of = np.searchsorted(ordered[np.arange(1, 12) * 124 // 12], probabilities, "right")
        sums = np.bincount(bin_of, probabilities - true)
        truth = float(np.sqrt((sums**2 / np.bincount(bin_of)).sum() / 124))
        error = calibration_error(probabilities, right)
        covered += error.low <= truth <= error.high
    assert covered >= 90


def test_pairs_of_one_query_count_once() -> None:
    """A query that is repeated tells nothing new, so the interval stays as wide."""
    probabilities, right, _ = sample(3, 200, 0.5, 1.0)
    alone = calibration_error(probabilities, right)
    again = calibration_error(*(np.repeat(item, 10) for item in (probabilities, right, np.arange(200))))
    assert again.value == pytest.approx(alone.value, abs=0.02)
    assert again.high - again.low > 0.8 * (alone.high - alone.low)


def test_the_error_of_scores_by_hand() -> None:
    # One bin: the fraction of positives is 1/2 where learnt.
    choosing = ScoredPools(np.array([3.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]))
    checking = ScoredPools(np.array([-7.0]), np.array([1.0, 2.0, 2.0, 2.5]))
    differences = np.array([-0.5, 0.5, 0.5, 0.5, 0.5])
    expected = by_loop(np.zeros(5), differences, np.arange(5))
    assert calibration_error_of_scores(choosing, checking).value == pytest.approx(np.sqrt(expected))
    of_one_query = ScoredPools(checking.positives, checking.negatives, np.zeros(1, np.int64), np.zeros(4, np.int64))
    assert np.isnan(calibration_error_of_scores(choosing, of_one_query).value)


def test_wrong_inputs_are_refused() -> None:
    for probabilities, right, queries, why in (
        ([], [], None, "at least one pair"),
        ([0.1], [True, False], None, "1 scores, and the shape of the relevance"),
        ([np.nan, 0.1], [True, False], None, "NaN"),
        ([0.2, 0.1], [True, False], [0], "some scores have no query"),
    ):
        given = None if queries is None else np.array(queries)
        with pytest.raises(MetricInputError, match=why):
            calibration_error(np.array(probabilities), np.array(right), given)
    with pytest.raises(MetricInputError, match="no scores"):
        calibration_error_of_scores(ScoredPools(np.array([]), np.array([])), ScoredPools(np.ones(1), np.ones(1)))
