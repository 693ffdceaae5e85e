"""Maps from score to probability against scikit-learn, their files, and the error of probabilities."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.probability import IsotonicMap, ScoreMap, fit_isotonic, fit_platt


def pairs_of(seed: int, count: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rounded scores with ties, and relevance that grows with the score."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=count), 1)
    return scale * scores.astype(np.float32), rng.random(count) < 1 / (1 + np.exp(-2 * scores))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 200), scale=st.sampled_from([1e-3, 1.0, 300.0]))
def test_the_isotonic_map_equals_scikit_learn(seed: int, count: int, scale: float) -> None:
    scores, relevant = pairs_of(seed, count, scale)
    where = np.linspace(-4, 4, 50) * scale
    theirs = IsotonicRegression(out_of_bounds="clip").fit(scores.astype(np.float64), relevant)
    assert fit_isotonic(scores, relevant).probability(where) == pytest.approx(theirs.predict(where), abs=1e-9)


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
    ours = fit_platt(scores, relevant).probability(scores)
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


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 300))
def test_a_map_is_monotone_bounded_and_the_same_after_json(seed: int, count: int) -> None:
    scores, relevant = pairs_of(seed, count)
    where = np.sort(np.concatenate([scores.astype(np.float64), np.linspace(-9, 9, 40), [-np.inf, np.inf]]))
    for curve in (fit_isotonic(scores, relevant), fit_platt(scores, relevant)):
        values = curve.probability(where)
        assert (np.diff(values) >= 0).all()
        assert values[0] >= 0
        assert values[-1] <= 1
        again = ScoreMap.from_json(json.loads(json.dumps(curve.to_json())))
        assert again == curve
        assert (again.probability(where) == values).all()


@pytest.mark.parametrize(
    "content",
    [
        {"method": "isotonic", "scores": [], "probabilities": []},
        {"method": "isotonic", "scores": [0.1, 0.2], "probabilities": [0.5]},
        {"method": "isotonic", "scores": [0.2, 0.1], "probabilities": [0.5, 0.6]},
        {"method": "isotonic", "scores": [0.1, 0.2], "probabilities": [0.6, 0.5]},
        {"method": "isotonic", "scores": [0.1, float("inf")], "probabilities": [0.5, 0.6]},
        {"method": "isotonic", "scores": [0.1, float("nan"), 0.3], "probabilities": [0.5, 0.6, 0.7]},
        {"method": "isotonic", "scores": [0.1, 0.2], "probabilities": [float("nan"), 0.6]},
        {"method": "isotonic", "scores": [0.1], "probabilities": [1.5]},
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
        ([0.1], [True, False], "1 scores and relevance of shape"),
        ([np.nan, 0.1], [True, False], "NaN"),
        ([np.inf, 0.1], [True, False], "infinite"),
    ):
        with pytest.raises(MetricInputError, match=why):
            fit(np.array(scores), np.array(relevant))
