"""Measures of selective retrieval against loops over thresholds and queries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy import ndarray

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.selective_retrieval import (
    area_under_risk_coverage,
    bootstrap_interval,
    normalized_abstention_auc,
    resampling_weights,
)
from selection import answer_f1, pseudo_values, risk_coverage

SEEDS = range(3)


def sample(seed: int, count: int = 37) -> tuple[ndarray, ndarray, ndarray]:
    """Return scores with ties, whether the best document is right, and whether a query is answerable."""
    rng = np.random.default_rng(seed)
    answerable = rng.random(count) < 0.6
    right = answerable & (rng.random(count) < 0.7)
    scores = np.round(rng.normal(right * 1.0, 1), 1)
    return scores, right, answerable


def repeated(weights: ndarray, *columns: ndarray) -> list[ndarray]:
    """Return the columns with each query as often as its weight says."""
    return [np.repeat(column, weights.astype(int)) for column in columns]


def area_by_loop(scores: ndarray, right: ndarray) -> float:
    return float(np.mean([1 - right[scores >= score].mean() for score in scores]))


def f1_by_loop(scores: ndarray, right: ndarray, answerable: ndarray, threshold: float) -> float:
    hits = sum(bool(value) for score, value in zip(scores, right, strict=True) if score >= threshold)
    if not hits:
        return 0.0
    precision, recall = hits / (scores >= threshold).sum(), hits / answerable.sum()
    return float(2 * precision * recall / (precision + recall))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_measure_equals_a_loop_on_resampled_queries_too(seed: int) -> None:
    scores, right, answerable = sample(seed)
    weights = np.concatenate([np.ones((1, len(scores))), resampling_weights([22, 15], 3, seed)])
    measured = {
        "area": area_under_risk_coverage(scores, right, weights),
        "f1": answer_f1(scores, right, answerable, 0.4, weights),
    }
    for row, weight in enumerate(weights):
        some, ok, can = repeated(weight, scores, right, answerable)
        assert measured["area"][row] == pytest.approx(area_by_loop(some, ok), abs=1e-12)
        assert measured["f1"][row] == pytest.approx(f1_by_loop(some, ok, can, 0.4), abs=1e-12)


def test_the_curve_ends_with_every_query() -> None:
    scores, right, _ = sample(0)
    curve = risk_coverage(scores, right)
    for score, coverage, risk in zip(curve.scores, curve.coverage, curve.risk, strict=True):
        assert (coverage, risk) == ((scores >= score).mean(), pytest.approx(1 - right[scores >= score].mean()))
    assert (np.diff(curve.scores) < 0).all()
    assert curve.coverage[-1] == 1


def test_pseudo_values_leave_one_query_out() -> None:
    scores, right, _ = sample(2)

    def area(weights: ndarray) -> ndarray:
        return area_under_risk_coverage(scores, right, weights)

    count, whole = len(scores), area_by_loop(scores, right)
    values = pseudo_values(area, count)
    for query in (0, 7, count - 1):
        without = area_by_loop(np.delete(scores, query), np.delete(right, query))
        assert values[query] == pytest.approx(count * whole - (count - 1) * without)


def test_each_data_set_is_resampled_on_its_own_and_the_same_again() -> None:
    weights = resampling_weights([30, 10], 50, 3)
    assert (weights[:, :30].sum(axis=1) == 30).all()
    assert (weights[:, 30:].sum(axis=1) == 10).all()
    assert (weights == resampling_weights([30, 10], 50, 3)).all()
    assert bootstrap_interval(np.append(np.arange(101.0), np.nan)) == pytest.approx((2.5, 97.5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda item: area_under_risk_coverage(np.array([np.nan]), item), "NaN"),
        (lambda item: area_under_risk_coverage(np.zeros(2), item), "2 scores and 1 values"),
        (lambda item: risk_coverage(np.zeros(0), np.zeros(0)), "0 scores"),
    ],
)
def test_wrong_input_is_refused_in_one_line(call: Callable[[ndarray], object], message: str) -> None:
    with pytest.raises(MetricInputError, match=message) as error:
        call(np.ones(1, bool))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_nauc_equals_that_of_mteb(seed: int) -> None:
    from mteb._evaluators.retrieval_metrics import evaluate_abstention

    rng = np.random.default_rng(seed)
    count = (1, 7, 53)[seed]
    scores = np.round(rng.normal(size=(count, 20)), 1)
    values = np.round(rng.random(count), 1)
    results = {f"q{row}": dict(zip(map(str, range(20)), scores[row].tolist(), strict=True)) for row in range(count)}
    theirs = evaluate_abstention(results, {"NDCG@10": values.tolist()})
    ranked = -np.sort(-scores, axis=1)
    confidence = {"max": ranked[:, 0], "std": scores.std(axis=1), "diff1": ranked[:, 0] - ranked[:, 1]}
    for name, ours in confidence.items():
        expected = theirs[f"nAUC_NDCG@10_{name}"]
        assert normalized_abstention_auc(ours, values) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_nauc_of_an_oracle_of_chance_and_of_equal_values() -> None:
    values = np.arange(50) / 50
    assert normalized_abstention_auc(values, values) == pytest.approx(1)
    assert normalized_abstention_auc(np.zeros(50), values) == pytest.approx(0)
    assert normalized_abstention_auc(np.where(values < 0.1, -np.inf, values), values) == pytest.approx(1, abs=0.01)
    assert np.isnan(normalized_abstention_auc(values, np.full(50, 0.3)))
