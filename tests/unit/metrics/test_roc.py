"""The thinned ROC curve, its band, and score histograms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve as sklearn_curve

from raytriever.metrics.auc import pooled_auc, roc_curve


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), points=st.integers(1, 60), digits=st.integers(0, 6))
def test_kept_points_are_exact_and_near_each_other(seed: int, points: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    up, down = np.round(rng.normal(1, 1, 70), digits), np.round(rng.normal(0, 1, 300), digits)
    result = roc_curve(up, down, points)
    for threshold, false, true in zip(
        result.thresholds[1:], result.false_positive_rate[1:], result.true_positive_rate[1:], strict=True
    ):
        assert true == pytest.approx((up >= threshold).mean(), abs=1e-12)
        assert false == pytest.approx((down >= threshold).mean(), abs=1e-12)
    for rates, pool in ((result.true_positive_rate, up), (result.false_positive_rate, down)):
        assert (rates[0], rates[-1]) == (0, pytest.approx(1))
        most_equal = np.unique(pool, return_counts=True)[1].max()
        assert (np.diff(rates) >= 0).all()
        assert np.diff(rates).max() <= 1 / points + (1 + most_equal) / len(pool)
    assert (result.low <= result.true_positive_rate).all()
    assert (result.true_positive_rate <= result.high).all()


def test_with_a_point_for_every_score_it_is_the_whole_curve() -> None:
    rng = np.random.default_rng(0)
    up, down = np.r_[np.inf, rng.integers(0, 30, 50)], np.r_[-np.inf, rng.integers(-10, 20, 90)]
    result = roc_curve(up, down, 1000)
    labels = np.r_[np.ones(len(up)), np.zeros(len(down))]
    finite = np.nan_to_num(np.r_[up, down], posinf=99, neginf=-99)
    false, true, _ = sklearn_curve(labels, finite, drop_intermediate=False)
    np.testing.assert_allclose(result.false_positive_rate, false)
    np.testing.assert_allclose(result.true_positive_rate, true)
    assert np.trapezoid(result.true_positive_rate, result.false_positive_rate) == pytest.approx(pooled_auc(up, down))


def test_the_band_holds_the_whole_true_curve_as_often_as_it_says() -> None:
    # Uniform on [0, 1] against its square root: the true curve is 1 - (1 - x)^2.
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        result = roc_curve(np.sqrt(rng.random(60)), rng.random(120), confidence=0.8)
        truth = 1 - (1 - result.false_positive_rate) ** 2
        held += bool(((result.low <= truth) & (truth <= result.high)).all())
    assert 0.8 <= held / 200 < 1
