"""Global thresholds: chosen by trying every score, and marked if out of reach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.metrics.calibration import ScoredPools, choose_threshold
from raytriever.metrics.inputs import MetricInputError


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), aim=st.sampled_from(["precision", "recall"]), tenths=st.integers(1, 10))
def test_equals_trying_every_score(seed: int, aim: str, tenths: int) -> None:
    rng = np.random.default_rng(seed)
    positives, negatives = rng.integers(0, 12, rng.integers(1, 12)), rng.integers(-4, 9, rng.integers(0, 40))
    tried = {}
    for score in sorted({*positives.tolist(), *negatives.tolist()}):
        true, false = (positives >= score).sum(), (negatives >= score).sum()
        tried[score] = {"precision": true / (true + false), "recall": true / len(positives)}
    enough = [score for score, result in tried.items() if result[aim] >= tenths / 10]
    result = choose_threshold(ScoredPools(positives.astype(np.float32), negatives.astype(np.float64)), aim, tenths / 10)
    assert result.reached == bool(enough)
    if enough:
        assert result.score == (min(enough) if aim == "precision" else max(enough))
        assert (result.precision, result.recall) == (tried[result.score]["precision"], tried[result.score]["recall"])
    else:
        assert aim == "precision"
        assert result.score == np.inf
        assert result.precision == max(each["precision"] for each in tried.values())


def test_ties_are_taken_all_or_none() -> None:
    # Four of the five best scores are equal: half of the positives cannot be taken apart.
    result = choose_threshold(ScoredPools(np.array([5.0, 3.0, 3.0]), np.array([3.0, 3.0, 1.0])), "recall", 0.5)
    assert (result.score, result.recall, result.precision) == (3, 1, 3 / 5)


def test_unreachable_precision_is_reported() -> None:
    result = choose_threshold(ScoredPools(np.array([1.0, 0.5]), np.array([2.0, 0.1])), "precision", 0.9)
    assert (result.reached, result.score, result.precision) == (False, np.inf, 2 / 3)


@pytest.mark.parametrize("wanted", [0.0, 1.01, float("nan")])
def test_refuse_aims_out_of_range(wanted: float) -> None:
    with pytest.raises(MetricInputError, match="give a precision or recall"):
        choose_threshold(ScoredPools(np.ones(2), np.zeros(2)), "recall", wanted)


def test_without_positives_there_is_none() -> None:
    with pytest.raises(MetricInputError, match="no positives"):
        choose_threshold(ScoredPools(np.ones(0), np.zeros(2)), "recall", 0.5)
