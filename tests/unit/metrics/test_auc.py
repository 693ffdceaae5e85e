"""AUC against scikit-learn and against its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from raytriever.metrics.auc import auc


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), positives=st.integers(1, 40), negatives=st.integers(1, 400))
def test_equals_sklearn_with_ties_and_scores_of_any_range(seed: int, positives: int, negatives: int) -> None:
    rng = np.random.default_rng(seed)
    up = rng.integers(-30, 60, positives).astype(np.float32)
    down = rng.integers(-60, 30, negatives).astype(np.float32)
    labels = np.r_[np.ones(positives), np.zeros(negatives)]
    assert auc(up, down) == pytest.approx(roc_auc_score(labels, np.r_[up, down]), abs=1e-12)


def test_ties_count_half() -> None:
    assert auc(np.array([1.0]), np.array([1.0, 1.0, 0.0, 2.0])) == 0.5


def test_an_empty_pool_has_no_area() -> None:
    assert np.isnan(auc(np.array([]), np.array([1.0])))
