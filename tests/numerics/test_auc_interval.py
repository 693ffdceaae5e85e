"""Standard errors of the AUC against their definitions and against what repeated draws do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.metrics.auc import auc
from raytriever.metrics.auc_interval import auc_interval
from raytriever.metrics.inputs import MetricInputError


def pools(seed: int, positives: int = 30, negatives: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(1, 1, positives), 1), np.round(rng.normal(0, 1, negatives), 1)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_delong_written_out(seed: int) -> None:
    up, down = pools(seed)
    kernel = (up[:, None] > down) + (up[:, None] == down) / 2
    variance = kernel.mean(1).var(ddof=1) / len(up) + kernel.mean(0).var(ddof=1) / len(down)
    found = auc_interval(up.astype(np.float32), down.astype(np.float32))
    assert found.auc == pytest.approx(kernel.mean(), abs=1e-12)
    assert found.standard_error == pytest.approx(np.sqrt(variance), rel=1e-9)
    assert 0 <= found.low < found.auc < found.high <= 1


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
    found = auc_interval(up, down, ours, theirs).standard_error
    assert found == pytest.approx(np.sqrt(variance), rel=1e-9) if variance > 0 else np.isnan(found)


def test_a_cluster_for_every_score_is_delong() -> None:
    up, down = pools(3)
    ours, theirs = np.arange(len(up)), len(up) + np.arange(len(down))
    alone = auc_interval(up, down)
    assert auc_interval(up, down, ours, theirs).standard_error == pytest.approx(alone.standard_error, rel=1e-12)


def test_only_the_clustered_error_is_that_of_repeated_draws_where_queries_have_levels_of_their_own() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = np.arange(40), np.repeat(np.arange(40), 20)
    areas, plain, clustered = [], [], []
    for _ in range(300):
        level = rng.normal(0, 2, 40)
        up, down = rng.normal(1, 1, 40) + level, rng.normal(0, 1, 800) + level[theirs]
        areas.append(auc(up, down))
        plain.append(auc_interval(up, down).standard_error)
        clustered.append(auc_interval(up, down, ours, theirs).standard_error)
    assert np.mean(clustered) == pytest.approx(np.std(areas), rel=0.12)
    assert np.mean(plain) != pytest.approx(np.std(areas), rel=0.12)


def test_nothing_is_said_where_pools_lie_apart_or_are_single() -> None:
    apart = auc_interval(np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    single = auc_interval(np.array([3.0]), np.array([1.0, 4.0]))
    assert (apart.auc, single.auc) == (1, 0.5)
    assert np.isnan([apart.standard_error, apart.low, apart.high, single.standard_error]).all()


def test_what_has_no_interval_is_told() -> None:
    some = np.array([1.0, 2.0])
    with pytest.raises(MetricInputError, match="a pool without scores"):
        auc_interval(some[:0], some)
    with pytest.raises(MetricInputError, match="queries of one pool only"):
        auc_interval(some, some, np.array([0, 1]))
    with pytest.raises(MetricInputError, match="scores of negatives: scores that do not each name a query"):
        auc_interval(some, some, np.array([0, 1]), np.array([0]))
    with pytest.raises(MetricInputError, match="a confidence of 95"):
        auc_interval(some, some, confidence=95)
