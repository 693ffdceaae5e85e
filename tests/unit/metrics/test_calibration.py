"""Thresholds checked on another split, their intervals, and the calibration error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from raytriever.metrics.calibration import ScoredPools, calibrate, expected_calibration_error, transfer_error
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.proportions import bootstrap_by_query, wilson

AIMS = [("precision", 0.7), ("recall", 0.8), ("precision", 0.999)]


def split(seed: int, queries: int = 200, level: float = 0.0, shift: float = 0.0) -> ScoredPools:
    """One positive and ten negatives a query; every query's scores are moved by a level of its own."""
    rng = np.random.default_rng(seed)
    levels = rng.normal(0, level, queries)
    of_negatives = np.repeat(np.arange(queries), 10)
    positives = np.round(rng.normal(2 + shift, 1, queries) + levels, 2)
    negatives = np.round(rng.normal(shift, 1, 10 * queries) + levels[of_negatives], 2)
    return ScoredPools(positives, negatives, np.arange(queries), of_negatives)


def test_the_table_by_its_definition() -> None:
    choosing, checking = split(0), split(1)
    rows = calibrate(choosing, checking, AIMS)
    for row, (aim, wanted) in zip(rows, AIMS, strict=True):
        true = (checking.positives >= row.threshold.score).sum()
        false = (checking.negatives >= row.threshold.score).sum()
        whole = true + false if aim == "precision" else len(checking.positives)
        assert (row.threshold.aim, row.threshold.wanted) == (aim, wanted)
        if row.threshold.reached:
            assert row.threshold.achieved >= wanted
            assert row.checked == true / whole
            assert row.low < row.checked < row.high
    apart = [abs(row.threshold.achieved - row.checked) for row in rows if row.threshold.reached]
    assert transfer_error(rows) == pytest.approx(np.mean(apart))


def test_out_of_reach_is_told_and_out_of_the_error() -> None:
    choosing = ScoredPools(np.array([1.0]), np.array([2.0]))
    rows = calibrate(choosing, split(0), [("precision", 0.9)])
    assert not rows[0].threshold.reached
    assert np.isnan([rows[0].checked, rows[0].low, transfer_error(rows)]).all()


def test_scores_that_do_not_each_name_a_query_are_told() -> None:
    right = split(0)
    wrong = ScoredPools(right.positives, right.negatives, right.positive_queries, np.arange(3))
    with pytest.raises(MetricInputError, match="checking split: scores that do not each name a query"):
        calibrate(right, wrong, AIMS)


def test_a_precision_of_nothing_taken_is_nothing() -> None:
    high = ScoredPools(np.array([9.0]), np.array([1.0]))
    low = ScoredPools(np.array([0.5]), np.array([0.1]))
    assert np.isnan(calibrate(high, low, [("precision", 0.9)])[0].checked)
    assert calibrate(high, low, [("recall", 0.9)])[0].checked == 0


def test_a_split_whose_scores_are_moved_shows_in_both_errors() -> None:
    choosing, alike, moved = split(0, 2_000), split(1, 2_000), split(2, 2_000, shift=1.0)
    for error in (
        lambda other: transfer_error(calibrate(choosing, other, AIMS[:2], draws=10)),
        lambda other: expected_calibration_error(choosing, other),
    ):
        assert error(alike) < 0.03 < 0.05 < error(moved)


def test_calibration_error_by_hand() -> None:
    # Bins from 0, 2, 4: shares of positives 0, 1/2, 1 where learnt; 1/2, 0, none where checked.
    choosing = ScoredPools(np.array([3.0, 4.0, 5.0]), np.array([0.0, 1.0, 2.0]))
    checking = ScoredPools(np.array([-7.0]), np.array([1.0, 2.0, 2.0, 2.5]))
    assert expected_calibration_error(choosing, checking, 3) == pytest.approx((2 * 0.5 + 3 * 0.5) / 5)
    assert expected_calibration_error(choosing, choosing, 3) == 0


@settings(deadline=None, max_examples=50)
@given(trials=st.integers(1, 500), share=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
def test_wilson_equals_scipy(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    theirs = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_the_bootstrap_draws_queries_and_not_scores() -> None:
    # A query's ten cases are alike: a hundred queries tell what a hundred cases would, not a thousand.
    rng = np.random.default_rng(0)
    held, width = 0, []
    for seed in range(200):
        parts = 10 * (rng.random(100) < 0.3)
        low, high = bootstrap_by_query(parts, np.full(100, 10), 0.9, 400, seed)
        held += low <= 0.3 <= high
        width.append(high - low)
    assert 0.84 < held / 200 < 0.96
    assert np.mean(width) > 2.5 * np.diff(wilson(300, 1000, 0.9))[0]


def test_the_bootstrap_draws_parts_and_wholes_together() -> None:
    cases = np.random.default_rng(0).integers(1, 20, 30)
    assert bootstrap_by_query(cases, cases) == (1, 1)


def test_bounds_of_nothing() -> None:
    assert wilson(0, 0) == (0, 1)
    assert np.isnan(bootstrap_by_query(np.zeros(3, int), np.zeros(3, int))).all()
    with pytest.raises(MetricInputError, match="successes from 0"):
        wilson(3, 2)
    with pytest.raises(MetricInputError, match="give both of each query"):
        bootstrap_by_query(np.ones(2, int), np.ones(3, int))
