"""AUC and its curve against scikit-learn and their definitions, and intervals of shares against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from scipy.stats import t as student
from sklearn.metrics import roc_curve as sklearn_curve

from raytriever.metrics.auc import auc_interval, auc_per_query, auc_pseudo_values, pooled_auc, roc_curve
from raytriever.metrics.intervals import wilson, wilson_by_query
from raytriever.metrics.metric_inputs import MetricInputError


def written_out(up: np.ndarray, down: np.ndarray) -> float:
    return float(((up[:, None] > down) + (up[:, None] == down) / 2).mean())


FEW, MANY = st.integers(-3, 3), {"min_size": 1, "max_size": 40}


@example([1 + 1e-12], [1.0])  # they differ only in float64
@settings(deadline=None, max_examples=80)
@given(
    up=st.lists(st.floats(allow_nan=False), **MANY) | st.lists(FEW, **MANY),
    down=st.lists(st.floats(allow_nan=False, width=32), **MANY) | st.lists(FEW, **MANY),
)
def test_equals_its_definition_with_ties_and_for_any_float(up: list[float], down: list[float]) -> None:
    ours, theirs = np.array(up, np.float64), np.array(down, np.float32)
    assert pooled_auc(ours, theirs) == pytest.approx(written_out(ours, theirs.astype(np.float64)), abs=1e-12)


def test_an_empty_pool_has_no_area_and_nan_is_an_error() -> None:
    assert np.isnan(pooled_auc(np.array([]), np.array([1.0])))
    with pytest.raises(MetricInputError, match="scores of negatives: 1 scores are NaN, the first at index 1"):
        pooled_auc(np.array([1.0]), np.array([1.0, np.nan]))
    none, some, of = np.zeros(0), np.ones(1), np.zeros(1, np.int64)
    with pytest.raises(MetricInputError, match="a pool has no scores"):
        auc_pseudo_values(none, some, np.zeros(0, np.int64), of, 1)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_per_query_is_the_auc_of_each_querys_scores(seed: int) -> None:
    rng = np.random.default_rng(seed)
    up, down = rng.integers(0, 5, 12).astype(np.float32), rng.integers(0, 5, 60).astype(np.float32)
    ours, theirs = rng.integers(0, 7, 12), rng.integers(0, 7, 60)
    result = auc_per_query(up, ours, down, theirs, 8)
    for query in range(8):
        np.testing.assert_allclose(result[query], pooled_auc(up[ours == query], down[theirs == query]), equal_nan=True)


@pytest.mark.parametrize("queries", [[1], [-1], [0, 0]])
def test_a_score_without_a_query_is_an_error(queries: list[int]) -> None:
    one, zero = np.array([1.0]), np.array([0])
    with pytest.raises(MetricInputError, match="scores of negatives: some scores have no query"):
        auc_per_query(one, zero, one, np.array(queries), 1)


Pools = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def pools(seed: int, queries: int = 60) -> Pools:
    """Scores that rise and fall with their query, with ties, each query with one positive and five negatives."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=queries)
    of, to = np.arange(queries), np.repeat(np.arange(queries), 5)
    positives = np.round(level[of] + rng.normal(1, 1, queries), 1)
    negatives = np.round(level[to] + rng.normal(0, 1, len(to)), 1)
    order = rng.permutation(len(to))
    return positives, negatives[order], of, to[order]


@pytest.mark.parametrize("seed", range(3))
def test_their_mean_is_the_auc_and_its_error_the_clustered_one(seed: int) -> None:
    result = pools(seed)
    values = auc_pseudo_values(*result, 60)
    assert values.mean() == pytest.approx(pooled_auc(result[0], result[1]), abs=1e-12)
    # All queries have both kinds of scores, so that the three factors I / (I - 1) are the same.
    assert values.std(ddof=1) / np.sqrt(60) == pytest.approx(auc_interval(*result).standard_error, rel=1e-9)
    # A query without scores has the AUC itself.
    assert auc_pseudo_values(*result, 61)[60] == pytest.approx(values.mean())


def test_a_query_whose_scores_move_moves_its_own_value_most() -> None:
    positives, negatives, of, to = pools(0)
    before = auc_pseudo_values(positives, negatives, of, to, 60)
    raised = positives + 9.0 * (of == 7)
    moved = auc_pseudo_values(raised, negatives, of, to, 60) - before
    assert int(np.abs(moved).argmax()) == 7
    assert moved[7] > 0


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


@settings(deadline=None, max_examples=50)
@given(trials=st.integers(1, 500), fraction=st.floats(0, 1))
def test_wilson_equals_scipy(trials: int, fraction: float) -> None:
    successes = round(fraction * trials)
    theirs = binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert wilson(successes, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_a_share_by_query_by_its_formula() -> None:
    parts, wholes = np.array([1, 0, 3, 2, 0]), np.array([2, 0, 4, 2, 1])
    fraction, queries = 6 / 9, 4
    variance = queries / (queries - 1) * sum((a - fraction * b) ** 2 for a, b in zip(parts, wholes, strict=True)) / 81
    trials, t = min(fraction * (1 - fraction) / variance, wholes.sum()), float(student.ppf(0.975, queries - 1))
    middle = (fraction + t * t / (2 * trials)) / (1 + t * t / trials)
    reach = t * np.sqrt(fraction * (1 - fraction) / trials + t * t / (4 * trials**2)) / (1 + t * t / trials)
    assert wilson_by_query(parts, wholes) == pytest.approx((middle - reach, middle + reach), abs=1e-12)


def test_a_share_by_query_of_all_cases_counts_each_query_once() -> None:
    cases = np.random.default_rng(0).integers(1, 20, 30)
    low, high = wilson_by_query(cases, cases)
    t = float(student.ppf(0.975, 29))
    assert high == 1
    assert low == pytest.approx(30 / (30 + t * t))
    assert wilson_by_query(np.array([7]), np.array([7])) == wilson(1, 1)
    assert wilson(0, 0) == wilson_by_query(np.zeros(3, int), np.zeros(3, int)) == (0, 1)
