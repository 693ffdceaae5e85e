"""AUC against scikit-learn and against its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from raytriever.metrics.auc import auc_per_query, pooled_auc
from raytriever.metrics.inputs import MetricInputError


def written_out(up: np.ndarray, down: np.ndarray) -> float:
    return float(((up[:, None] > down) + (up[:, None] == down) / 2).mean())


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), positives=st.integers(1, 40), negatives=st.integers(1, 400))
def test_equals_sklearn_with_ties_and_scores_of_any_range(seed: int, positives: int, negatives: int) -> None:
    rng = np.random.default_rng(seed)
    up = rng.integers(-30, 60, positives).astype(np.float32)
    down = rng.integers(-60, 30, negatives).astype(np.float32)
    labels = np.r_[np.ones(positives), np.zeros(negatives)]
    assert pooled_auc(up, down) == pytest.approx(roc_auc_score(labels, np.r_[up, down]), abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(
    up=st.lists(st.floats(allow_nan=False), min_size=1, max_size=9),
    down=st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=9),
)
def test_equals_its_definition_for_any_float_infinities_included(up: list[float], down: list[float]) -> None:
    ours, theirs = np.array(up), np.array(down, np.float32)
    assert pooled_auc(ours, theirs) == pytest.approx(written_out(ours, theirs.astype(np.float64)), abs=1e-12)


def test_scores_that_differ_only_in_float64_are_ordered() -> None:
    assert pooled_auc(np.array([1 + 1e-12]), np.array([1.0], np.float32)) == 1


def test_ties_count_half() -> None:
    assert pooled_auc(np.array([1.0]), np.array([1.0, 1.0, 0.0, 2.0])) == 0.5
    assert pooled_auc(np.array([0.0]), np.array([-0.0])) == 0.5


def test_an_empty_pool_has_no_area() -> None:
    assert np.isnan(pooled_auc(np.array([]), np.array([1.0])))


def test_nan_is_an_error() -> None:
    with pytest.raises(MetricInputError, match="scores of negatives: 1 scores are NaN, the first at index 1"):
        pooled_auc(np.array([1.0]), np.array([1.0, np.nan]))


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
