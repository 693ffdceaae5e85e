"""Thresholds checked on another split, their intervals, and the calibration error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from scipy.stats import t as student

from raytriever.metrics.calibration import (
    Proportion,
    ScoredPools,
    achieve,
    best_f1_threshold,
    calibrate,
    wilson,
    wilson_by_query,
)
from raytriever.metrics.inputs import MetricInputError

AIMS = [("precision", 0.7), ("recall", 0.8), ("precision", 0.999)]


def split(seed: int, queries: int = 200, level: float = 0.0, shift: float = 0.0) -> ScoredPools:
    """One positive and ten negatives a query; every query's scores are moved by a level of its own."""
    rng = np.random.default_rng(seed)
    levels = rng.normal(0, level, queries)
    of_negatives = np.repeat(np.arange(queries), 10)
    positives = np.round(rng.normal(2 + shift, 1, queries) + levels, 2)
    negatives = np.round(rng.normal(shift, 1, 10 * queries) + levels[of_negatives], 2)
    return ScoredPools(positives, negatives, np.arange(queries), of_negatives)


def test_calibrate_matches_its_definition() -> None:
    choosing, checking = split(0), split(1)
    rows = calibrate(choosing, checking, AIMS)
    for row, (aim, wanted) in zip(rows, AIMS, strict=True):
        true = (checking.positives >= row.threshold.score).sum()
        false = (checking.negatives >= row.threshold.score).sum()
        whole = true + false if aim == "precision" else len(checking.positives)
        assert (row.threshold.aim, row.threshold.wanted) == (aim, wanted)
        if row.threshold.reached:
            assert getattr(row.threshold, row.threshold.aim) >= wanted
            assert row.checked == true / whole
            assert row.low < row.checked < row.high


def test_unreachable_aim_has_no_checked_value() -> None:
    choosing = ScoredPools(np.array([1.0]), np.array([2.0]))
    rows = calibrate(choosing, split(0), [("precision", 0.9)])
    assert not rows[0].threshold.reached
    assert np.isnan([rows[0].checked, rows[0].low]).all()


def test_refuse_scores_without_a_query() -> None:
    right = split(0)
    wrong = ScoredPools(right.positives, right.negatives, right.positive_queries, np.arange(3))
    with pytest.raises(MetricInputError, match="some scores have no query"):
        calibrate(right, wrong, AIMS)


def test_precision_without_accepted_pairs_is_nan() -> None:
    high = ScoredPools(np.array([9.0]), np.array([1.0]), *[np.zeros(1, int)] * 2)
    low = ScoredPools(np.array([0.5]), np.array([0.1]), *[np.zeros(1, int)] * 2)
    assert np.isnan(calibrate(high, low, [("precision", 0.9)])[0].checked)
    assert calibrate(high, low, [("recall", 0.9)])[0].checked == 0


def transfer_error(choosing: ScoredPools, checking: ScoredPools) -> float:
    """Mean distance between the values of thresholds on both splits."""
    rows = calibrate(choosing, checking, AIMS[:2])
    return float(np.mean([abs(getattr(row.threshold, row.threshold.aim) - row.checked) for row in rows]))


def test_shifted_scores_increase_the_error_of_transfer() -> None:
    choosing, alike, moved = split(0, 2_000), split(1, 2_000), split(2, 2_000, shift=1.0)
    assert transfer_error(choosing, alike) < 0.03 < 0.05 < transfer_error(choosing, moved)


@settings(deadline=None, max_examples=50)
@given(trials=st.integers(1, 500), share=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
def test_wilson_equals_scipy(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    theirs = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_threshold_achieves_by_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(1, 12))
    ours = np.concatenate([np.arange(queries), rng.integers(0, queries, 5)])
    theirs = rng.integers(0, queries, 30)
    pools = ScoredPools(rng.integers(0, 8, len(ours)) / 2, rng.integers(0, 7, 30) / 2, ours, theirs)
    for score in (-1.0, 1.5, 3.0, 3.5, 9.0):
        answered = right = above = relevant = 0
        for query in range(queries):
            own = [(value, True) for value in pools.positives[ours == query]]
            own += [(value, False) for value in pools.negatives[theirs == query]]
            taken = [pair for pair in own if pair[0] >= score]
            answered += bool(taken)
            best = max((value for value, _ in taken), default=None)
            right += bool(taken) and all(is_relevant for value, is_relevant in taken if value == best)
            above += len(taken)
            relevant += sum(is_relevant for _, is_relevant in taken)
        result = achieve(pools, score)
        assert result.coverage == Proportion(answered, queries, *wilson(answered, queries))
        assert result.top_precision == Proportion(right, answered, *wilson(right, answered))
        assert (result.precision.part, result.precision.whole) == (relevant, above)
        assert (result.recall.part, result.recall.whole) == (relevant, len(ours))
        for share in (result.precision, result.recall):
            assert 0 <= share.low <= share.high <= 1
            assert not share.low > share.value
            assert not share.value > share.high


def test_one_answered_question_is_no_certain_precision() -> None:
    # Thirty queries of which one has an answer, a right one: its precision was reported as 1, from 1 to 1.
    positives = np.array([0.9, *np.linspace(0.1, 0.3, 29)])
    pools = ScoredPools(positives, np.full(30, 0.2), np.arange(30), np.arange(30))
    result = achieve(pools, 0.8)
    assert (result.coverage.part, result.coverage.whole) == (1, 30)
    assert (result.coverage.low, result.coverage.high) == pytest.approx((0.0059, 0.1667), abs=1e-4)
    for share in (result.top_precision, result.precision):
        assert share.value == 1
        assert (share.low, share.high) == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert result.recall.value == pytest.approx(1 / 30)
    assert result.recall.high > 0.12


def test_a_share_by_query_counts_queries_and_not_cases() -> None:
    # A query's ten cases are alike: a hundred queries say what a hundred cases would, not a thousand.
    rng = np.random.default_rng(0)
    held, width = 0, []
    for _ in range(200):
        low, high = wilson_by_query(10 * (rng.random(100) < 0.3), np.full(100, 10), 0.9)
        held += low <= 0.3 <= high
        width.append(high - low)
    assert 0.84 < held / 200 < 0.96
    assert np.mean(width) > 2.5 * np.diff(wilson(300, 1000, 0.9))[0]


def test_a_share_by_query_by_its_formula() -> None:
    parts, wholes = np.array([1, 0, 3, 2, 0]), np.array([2, 0, 4, 2, 1])
    share, queries = 6 / 9, 4
    variance = queries / (queries - 1) * sum((a - share * b) ** 2 for a, b in zip(parts, wholes, strict=True)) / 81
    trials, t = min(share * (1 - share) / variance, wholes.sum()), float(student.ppf(0.975, queries - 1))
    middle = (share + t * t / (2 * trials)) / (1 + t * t / trials)
    reach = t * np.sqrt(share * (1 - share) / trials + t * t / (4 * trials**2)) / (1 + t * t / trials)
    assert wilson_by_query(parts, wholes) == pytest.approx((middle - reach, middle + reach), abs=1e-12)


def test_a_share_by_query_of_all_cases_counts_each_query_once() -> None:
    cases = np.random.default_rng(0).integers(1, 20, 30)
    low, high = wilson_by_query(cases, cases)
    t = float(student.ppf(0.975, 29))
    assert high == 1
    assert low == pytest.approx(30 / (30 + t * t))
    assert wilson_by_query(np.array([7]), np.array([7])) == wilson(1, 1)


def test_bounds_of_nothing() -> None:
    assert wilson(0, 0) == (0, 1)
    assert wilson_by_query(np.zeros(3, int), np.zeros(3, int)) == (0, 1)
    with pytest.raises(MetricInputError, match="successes from 0"):
        wilson(3, 2)
    with pytest.raises(MetricInputError, match="give both for each query"):
        wilson_by_query(np.ones(2, int), np.ones(3, int))
    with pytest.raises(MetricInputError, match="give both for each query"):
        wilson_by_query(np.array([2]), np.array([1]))


def test_the_highest_of_thresholds_with_one_f1_is_chosen() -> None:
    """F1 is 2/3 at 0 and at 0.5; as a product of precision and recall, the two differ in the last bit."""
    positives, negatives = np.array([0, 0.5, 0.5, 0.625]), np.array([0.25, 0.5, 0.5, 0.375])
    assert best_f1_threshold(positives, negatives) == (0.5, 3 / 5, 3 / 4)
