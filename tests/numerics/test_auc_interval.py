"""Standard errors and bounds of the AUC, and significance, against their definitions and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from raytriever.metrics.auc import auc_interval
from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.significance_tests import holm, paired_t_test


def pools(seed: int, positives: int = 30, negatives: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(1, 1, positives), 1), np.round(rng.normal(0, 1, negatives), 1)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_delong_written_out(seed: int) -> None:
    up, down = pools(seed)
    kernel = (up[:, None] > down) + (up[:, None] == down) / 2
    variance = kernel.mean(1).var(ddof=1) / len(up) + kernel.mean(0).var(ddof=1) / len(down)
    result = auc_interval(up.astype(np.float32), down.astype(np.float32))
    assert result.auc == pytest.approx(kernel.mean(), abs=1e-12)
    assert result.standard_error == pytest.approx(np.sqrt(variance), rel=1e-9)
    assert 0 <= result.low < result.auc < result.high <= 1


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(2, 9))
def test_equals_obuchowski_written_out(seed: int, queries: int) -> None:
    up, down = pools(seed)
    rng = np.random.default_rng(seed)
    ours, theirs = rng.integers(0, queries, len(up)), rng.integers(0, queries, len(down))
    ours[:2], theirs[:2] = [0, 1], [0, 1]
    kernel = (up[:, None] > down) + (up[:, None] == down) / 2
    area, v, w = kernel.mean(), kernel.mean(1), kernel.mean(0)
    members = range(queries)
    a = [sum(v[ours == q] - area) for q in members]
    b = [sum(w[theirs == q] - area) for q in members]
    i_p, i_n = len(set(ours)), len(set(theirs))
    i = len(set(ours) | set(theirs))
    s_p = i_p / ((i_p - 1) * len(up)) * sum(x * x for x in a)
    s_n = i_n / ((i_n - 1) * len(down)) * sum(x * x for x in b)
    s_pn = i / (i - 1) * sum(x * y for x, y in zip(a, b, strict=True))
    variance = s_p / len(up) + s_n / len(down) + 2 * s_pn / (len(up) * len(down))
    result = auc_interval(up, down, ours, theirs).standard_error
    assert result == pytest.approx(np.sqrt(variance), rel=1e-9) if variance > 0 else np.isnan(result)


@pytest.mark.parametrize("seed", range(10))
def test_bounds_by_their_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(3, 12))
    ours, theirs = np.repeat(np.arange(queries), 2), np.repeat(np.arange(queries), 5)
    up, down = rng.normal(1, 1, len(ours)), rng.normal(0, 1, len(theirs))
    kernel = (up[:, None] > down) + (up[:, None] == down) / 2
    area, v, w = kernel.mean(), kernel.mean(1), kernel.mean(0)
    fractions = [sum(v[ours == q] - area) / len(up) + sum(w[theirs == q] - area) / len(down) for q in range(queries)]
    squares = sum(d**2 for d in fractions)
    inverse = sum(d**4 for d in fractions) / squares**2 - 2 / queries
    freedom = queries - 1 if inverse <= 0 else min(max(1 / inverse, 1), queries - 1)
    result = auc_interval(up, down, ours, theirs)
    reach = student.ppf(0.975, freedom) * result.standard_error / (area * (1 - area))
    logit = np.log(area / (1 - area))
    assert result.low == pytest.approx(1 / (1 + np.exp(-(logit - reach))), rel=1e-9)
    assert result.high == pytest.approx(1 / (1 + np.exp(-(logit + reach))), rel=1e-9)
    of_positives = {int(q) for q in ours[v < 1]}
    of_negatives = {int(q) for q in theirs[w < 1]}
    assert result.misordered == min(len(of_positives), len(of_negatives))


def test_pools_that_lie_apart_leave_open_what_so_few_queries_leave_open() -> None:
    up, down = np.arange(30.0) + 100, np.arange(60.0)
    result = auc_interval(up, down, np.arange(30), np.arange(60) // 2)
    assert (result.auc, result.high, result.misordered) == (1, 1, 0)
    assert result.low == pytest.approx(0.05 ** (1 / 30))  # about 1 - 3 / 30
    assert np.isnan(result.standard_error)
    assert result.note is not None
    assert result.note.startswith("All pairs are in the same order.")
    turned = auc_interval(down, up, np.arange(60) // 2, np.arange(30))
    assert (turned.auc, turned.low) == (0, 0)
    assert turned.high == pytest.approx(1 - 0.05 ** (1 / 30))
    apart = auc_interval(np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    assert apart.low == pytest.approx(0.05**0.5)


def test_nothing_is_said_of_one_query_or_one_score() -> None:
    single = auc_interval(np.array([3.0]), np.array([1.0, 4.0]))
    of_one_query = auc_interval(np.array([3.0, 2.0]), np.array([1.0, 4.0]), np.array([0, 0]), np.array([0, 1]))
    assert (single.auc, of_one_query.auc) == (0.5, 0.5)
    for result in (single, of_one_query):
        assert np.isnan([result.standard_error, result.low, result.high]).all()
        assert result.note is not None
        assert result.note.startswith("There is no interval")


def test_few_misordered_queries_are_warned_of() -> None:
    up, down = np.linspace(10, 11, 100), np.zeros(100)
    up[:3], down[3:9] = -1, 0.5
    few = auc_interval(up, down, np.arange(100), np.arange(100))
    assert few.misordered == 3
    assert few.note == "Queries with misordered pairs: 3. Below 10, the interval is uncertain."
    up[:12] = -1
    assert auc_interval(up, down, np.arange(100), np.arange(100)).note is None


def test_a_missing_interval_is_reported() -> None:
    some = np.array([1.0, 2.0])
    with pytest.raises(MetricInputError, match="a pool has no scores"):
        auc_interval(some[:0], some)
    with pytest.raises(MetricInputError, match="scores of negatives: some scores have no query"):
        auc_interval(some, some, np.array([0, 1]), np.array([0]))
    with pytest.raises(MetricInputError, match="the confidence is 95"):
        auc_interval(some, some, confidence=95)


def values(seed: int, queries: int, shift: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    baseline = np.round(rng.random(queries), 1)
    return np.round(baseline + shift + rng.normal(0, 0.2, queries), 1), baseline


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(3, 60))
def test_t_test_equals_scipy(seed: int, queries: int) -> None:
    system, baseline = values(seed, queries)
    assume(np.ptp(system - baseline) > 0.05)  # not all differ alike
    theirs = scipy.stats.ttest_rel(system, baseline)
    ours = paired_t_test(system, baseline)
    assert (ours.statistic, ours.p_value) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-10)
    assert ours.effect == pytest.approx(theirs.statistic / np.sqrt(queries))


def test_t_test_where_no_query_differs_or_all_do_alike() -> None:
    same = np.array([0.1, 0.2, 0.7])
    assert paired_t_test(same, same).p_value == 1
    assert paired_t_test(same + 0.1, same).p_value == 0
    assert paired_t_test(same - 0.1, same).effect == -np.inf


def test_holm_by_its_steps() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]).tolist() == [1, 1]
    assert holm([]).tolist() == []
    with pytest.raises(MetricInputError, match="from 0 to 1"):
        holm([0.1, float("nan")])


@settings(deadline=None, max_examples=50)
@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=8), level=st.floats(0.001, 0.999))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], level: float) -> None:
    rejected = set()
    for step, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (len(p_values) - step) > level:
            break
        rejected.add(index)
    assert set(np.flatnonzero(holm(p_values) <= level)) == rejected


def test_unpaired_scores_are_reported() -> None:
    one, three = np.array([0.1]), np.array([0.1, 0.2, np.nan])
    with pytest.raises(MetricInputError, match="at least two"):
        paired_t_test(one, one)
    with pytest.raises(MetricInputError, match="of the same queries"):
        paired_t_test(three[:2], three)
    with pytest.raises(MetricInputError, match="query 2 has no finite value"):
        paired_t_test(three, three)
