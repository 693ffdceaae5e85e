"""Intervals of fractions: those of independent cases equal SciPy's, and cases of one query count as fewer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from scipy.stats import t as student

from raytriever.metrics.intervals import wilson, wilson_by_query


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


def test_bounds_of_nothing() -> None:
    assert wilson(0, 0) == (0, 1)
    assert wilson_by_query(np.zeros(3, int), np.zeros(3, int)) == (0, 1)
