"""The streaming AUC against the exact one: within its stated bound, whatever the scores, their order and the room."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.metrics.auc import pooled_auc
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.streaming import ScoreCounts, streaming_auc

SMALL = 4 * 2**20
KINDS = ("cosines", "dots", "tied", "wild", "double")


def scores(rng: np.random.Generator, kind: str, size: int, shift: float) -> np.ndarray:
    if kind == "double":
        return rng.normal(1e-7 * shift, 1e-7, size) + 1
    if kind == "wild":
        bits = rng.integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(bits), np.float32(np.inf), bits)
    drawn = {"cosines": rng.normal(0.5 + 0.1 * shift, 0.1, size), "dots": rng.normal(10 * shift, 30, size)}
    return drawn.get(kind, rng.integers(-3, 4, size) * 0.0 + rng.integers(-3, 4, size)).astype(np.float32)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), parts=st.integers(1, 4), merged=st.booleans())
def test_within_the_bound(seed: int, kind: str, parts: int, merged: bool) -> None:
    rng = np.random.default_rng(seed)
    pools = [(scores(rng, kind, 3_000, 1.0), scores(rng, kind, 30_000, 0.0)) for _ in range(parts)]
    counts = ScoreCounts(SMALL)
    for positives, negatives in pools:
        if merged:
            others = ScoreCounts(SMALL)
            others.add(positives, negatives)
            counts.merge(others)
        else:
            counts.add(positives, negatives)
    exact = pooled_auc(*(np.concatenate(pool) for pool in zip(*pools, strict=True)))
    result = streaming_auc(counts)
    assert (result.positives, result.negatives) == (3_000 * parts, 30_000 * parts)
    assert abs(result.value - exact) <= result.error_bound + 1e-15
    assert result.error_bound < {"cosines": 2e-5, "dots": 2e-5, "tied": 1e-15, "wild": 1e-4, "double": 0.3}[kind]


def test_with_room_for_every_float_it_is_exact_and_else_it_is_not() -> None:
    rng = np.random.default_rng(0)
    positives, negatives = (rng.uniform(1.0, 1.5, size).astype(np.float32) for size in (20_000, 50_000))
    exact, actual = pooled_auc(positives, negatives), {}
    for budget in (SMALL, 32 * 2**20, 128 * 2**20):
        counts = ScoreCounts(budget)
        counts.add(positives, negatives)
        actual[budget] = streaming_auc(counts)
    bounds = [result.error_bound for result in actual.values()]
    assert bounds[0] > bounds[1] > bounds[2] == 0
    assert actual[128 * 2**20].value == exact
    assert actual[SMALL].value != exact


@pytest.mark.parametrize("way", ["counted", "shrunk", "merged"])
def test_the_bound_holds_where_all_pairs_of_a_bin_are_in_order(way: str) -> None:
    rng = np.random.default_rng(0)
    around = tuple(rng.uniform(1, 2, 50_000).astype(np.float32) for _ in range(2))
    low, none = np.full(1_000, 1.5, np.float32), np.empty(0, np.float32)
    high = np.nextafter(low, np.float32(2))
    parts = {"counted": [around, (high, none), (none, low)], "shrunk": [(high, low), around]}.get(way, [around])
    counts = ScoreCounts(SMALL)
    for part in parts:
        counts.add(*part)
    for part in [(high, none), (none, low)] if way == "merged" else []:
        other = ScoreCounts(SMALL)
        other.add(*part)
        counts.merge(other)
    result = streaming_auc(counts)
    error = pooled_auc(np.r_[around[0], high], np.r_[around[1], low]) - result.value
    assert 1e-4 < error <= result.error_bound


def test_order_of_infinities_zeros_and_subnormal_numbers() -> None:
    ascending = np.array([-np.inf, -3e38, -1, -1e-45, 0, 1e-45, 1, 3e38, np.inf], np.float32)
    for index in range(len(ascending)):
        counts = ScoreCounts()
        counts.add(ascending[index : index + 1], ascending)
        assert streaming_auc(counts).value == (index + 0.5) / len(ascending)
    counts = ScoreCounts()
    counts.add(np.array([-0.0], np.float32), np.array([0.0], np.float32))
    assert streaming_auc(counts).value == 0.5


def test_scores_that_float32_does_not_tell_apart_are_in_the_bound() -> None:
    counts, merged = ScoreCounts(), ScoreCounts()
    counts.add(np.array([1 + 1e-12]), np.array([1.0]))
    merged.merge(counts)
    for result in (streaming_auc(counts), streaming_auc(merged)):
        assert (result.value, result.error_bound) == (0.5, 0.5)


def test_counts_travel_and_go_on() -> None:
    rng = np.random.default_rng(0)
    pools = [(scores(rng, "dots", 2_000, 1.0), scores(rng, "dots", 20_000, 0.0)) for _ in range(2)]
    there, here = ScoreCounts(SMALL), ScoreCounts(SMALL)
    for pool in pools:
        there.add(*pool)
    here.add(*pools[0])
    here = pickle.loads(pickle.dumps(here))  # noqa: S301 - as Ray sends it between workers
    here.add(*pools[1])
    assert streaming_auc(here) == streaming_auc(there)
    assert len(pickle.dumps(ScoreCounts())) < 3 * 2**20


def test_an_empty_pool_has_no_area_and_nan_leaves_the_counts_alone() -> None:
    counts = ScoreCounts(SMALL)
    assert np.isnan(streaming_auc(counts).value)
    with pytest.raises(MetricInputError, match="NaN"):
        counts.add(np.array([1.0]), np.array([np.nan]))
    assert counts.sizes == (0, 0)
    with pytest.raises(MetricInputError, match="give at least 4 MiB"):
        ScoreCounts(1000)
