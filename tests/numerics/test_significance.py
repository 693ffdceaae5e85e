"""Significance against SciPy, and against how often nothing is found where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.significance_tests import holm, paired_t_test


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


def test_t_test_where_no_query_differs_or_all_do_alike() -> None:
    same = np.array([0.1, 0.2, 0.7])
    assert paired_t_test(same, same).p_value == 1
    assert paired_t_test(same + 0.1, same).p_value == 0
    assert paired_t_test(same - 0.1, same).effect == -np.inf


def test_the_t_test_finds_something_in_nothing_as_often_as_it_says() -> None:
    p_values = [paired_t_test(*values(seed, 15, shift=0.0)).p_value for seed in range(400)]
    assert 0.15 < np.mean(np.array(p_values) < 0.2) < 0.25


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


def test_the_effect_size_by_its_definition() -> None:
    system, baseline = np.array([0.5, 0.7, 0.2, 0.9]), np.array([0.4, 0.4, 0.3, 0.5])
    differences = system - baseline
    assert paired_t_test(system, baseline).effect == pytest.approx(differences.mean() / differences.std(ddof=1))


def test_unpaired_scores_are_reported() -> None:
    one, three = np.array([0.1]), np.array([0.1, 0.2, np.nan])
    with pytest.raises(MetricInputError, match="at least two"):
        paired_t_test(one, one)
    with pytest.raises(MetricInputError, match="of the same queries"):
        paired_t_test(three[:2], three)
    with pytest.raises(MetricInputError, match="query 2 has no finite value"):
        paired_t_test(three, three)
