"""Significance against SciPy, against enumeration, and against how often nothing is found where there is nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.significance import (
    SECOND_MARKS,
    compare,
    effect_size,
    holm,
    mark,
    paired_t_test,
    randomisation_test,
)


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
    assert ours.degrees == theirs.df


def test_t_test_where_no_query_differs_or_all_do_alike() -> None:
    same = np.array([0.1, 0.2, 0.7])
    assert paired_t_test(same, same).p_value == 1
    assert paired_t_test(same + 0.1, same).p_value == 0
    assert effect_size(same - 0.1, same).cohen == -np.inf


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(2, 9))
def test_randomisation_counts_every_assignment(seed: int, queries: int) -> None:
    system, baseline = values(seed, queries)
    tenths = np.rint(10 * (system - baseline)).astype(int)
    sums = [abs(sum(s * d for s, d in zip(signs, tenths, strict=True))) for signs in product((-1, 1), repeat=queries)]
    result = randomisation_test(system, baseline)
    assert result.exact
    assert result.p_value == pytest.approx(np.mean(np.array(sums) >= abs(tenths.sum())), abs=1e-12)


def test_drawn_assignments_agree_with_scipys() -> None:
    system, baseline = values(5, 20)
    assert randomisation_test(system, baseline).exact
    # Twelve more queries that hardly differ: too many assignments to count.
    system, baseline = np.r_[system, [1e-9] * 12], np.r_[baseline, [0.0] * 12]
    drawn = randomisation_test(system, baseline, draws=40_000)
    assert not drawn.exact
    theirs = scipy.stats.permutation_test(
        (system, baseline), lambda a, b, axis: (a - b).mean(axis), permutation_type="samples", n_resamples=40_000,
        vectorized=True, rng=1,
    )  # fmt: skip
    assert drawn.p_value == pytest.approx(theirs.pvalue, abs=0.015)
    assert drawn == randomisation_test(system, baseline, draws=40_000)
    assert drawn != randomisation_test(system, baseline, draws=40_000, seed=1)


def test_a_drawn_p_value_is_never_zero() -> None:
    result = randomisation_test(np.ones(100), np.zeros(100), draws=99)
    assert result.p_value == 1 / 100


def test_both_tests_find_something_in_nothing_as_often_as_they_say() -> None:
    by_t, by_tosses = [], []
    for seed in range(400):
        system, baseline = values(seed, 15, shift=0.0)
        by_t.append(paired_t_test(system, baseline).p_value)
        by_tosses.append(randomisation_test(system, baseline, draws=200).p_value)
    for p_values in (by_t, by_tosses):
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


def test_effect_sizes() -> None:
    system, baseline = np.array([0.5, 0.7, 0.2, 0.9]), np.array([0.4, 0.4, 0.3, 0.5])
    differences = system - baseline
    result = effect_size(system, baseline)
    assert result.cohen == pytest.approx(differences.mean() / differences.std(ddof=1))
    # Hedges' c(3), as his table gives it.
    assert result.hedges / result.cohen == pytest.approx(0.7236, abs=1e-4)
    assert np.isnan(effect_size(system[:2], baseline[:2]).hedges)


def test_hedges_is_unbiased_where_cohen_is_not() -> None:
    rng = np.random.default_rng(0)
    results = [effect_size(rng.normal(0.5, 1, 6), np.zeros(6)) for _ in range(4000)]
    assert np.mean([size.hedges for size in results]) == pytest.approx(0.5, abs=0.025)
    assert np.mean([size.cohen for size in results]) > 0.55


def test_marks_as_in_the_papers_tables_after_holm() -> None:
    base = np.tile([0.2, 0.4, 0.6], 20)
    noise = np.random.default_rng(0).normal(0, 0.1, 60)
    noise = 0.1 * (noise - noise.mean()) / noise.std(ddof=1)
    systems = {
        "up": base + 0.1 + noise,
        "down": base - 0.1 + noise,
        "level": base + noise,
        "hardly": base + 0.027 + noise,
    }
    result = compare(systems, dict.fromkeys(systems, base))
    assert [mark(each) for each in result.values()] == ["+", "-", "", ""]
    assert mark(result["up"], SECOND_MARKS) + mark(result["down"], SECOND_MARKS) == "◆◇"
    assert result["hardly"].t_test.p_value < 0.05 < result["hardly"].corrected_t
    assert mark(compare({"hardly": systems["hardly"]}, {"hardly": base})["hardly"]) == "+"
    assert result["up"].difference == pytest.approx(0.1)


def test_unpaired_scores_are_reported() -> None:
    one, three = np.array([0.1]), np.array([0.1, 0.2, np.nan])
    with pytest.raises(MetricInputError, match="at least two"):
        paired_t_test(one, one)
    with pytest.raises(MetricInputError, match="of the same queries"):
        randomisation_test(three[:2], three)
    with pytest.raises(MetricInputError, match="query 2 has no finite value"):
        effect_size(three, three)
    with pytest.raises(MetricInputError, match="only one system has 'b'"):
        compare({"a": three}, {"a": three, "b": three})
