"""Pseudo-values of the pooled AUC: their mean is it, and their spread is what the clustered error says."""

from __future__ import annotations

import numpy as np
import pytest

from raytriever.metrics.auc import auc_interval, auc_pseudo_values, pooled_auc
from raytriever.metrics.inputs import MetricInputError

Pools = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def pools(seed: int, queries: int = 60) -> Pools:
    """Scores that rise and fall with their query, with ties, each query with one positive and five negatives."""
    rng = np.random.default_rng(seed)
    level = rng.normal(size=queries)
    of, to = np.arange(queries), np.repeat(np.arange(queries), 5)
    positives = np.round(level[of] + rng.normal(1, 1, queries), 1)
    negatives = np.round(level[to] + rng.normal(0, 1, len(to)), 1)
    order = rng.permutation(len(to))
    return positives, negatives[order], of, to[order]


@pytest.mark.parametrize("seed", range(5))
def test_their_mean_is_the_auc(seed: int) -> None:
    result = pools(seed)
    assert auc_pseudo_values(*result, 60).mean() == pytest.approx(pooled_auc(result[0], result[1]), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_error_of_their_mean_is_the_clustered_one(seed: int) -> None:
    result = pools(seed)
    values = auc_pseudo_values(*result, 60)
    # All queries have both kinds of scores, so that the three factors I / (I - 1) are the same.
    assert values.std(ddof=1) / np.sqrt(60) == pytest.approx(auc_interval(*result).standard_error, rel=1e-9)


def test_a_query_whose_scores_move_moves_its_own_value_most() -> None:
    positives, negatives, of, to = pools(0)
    before = auc_pseudo_values(positives, negatives, of, to, 60)
    raised = positives + 9.0 * (of == 7)
    moved = auc_pseudo_values(raised, negatives, of, to, 60) - before
    assert int(np.abs(moved).argmax()) == 7
    assert moved[7] > 0


def test_a_query_without_scores_has_the_auc_itself() -> None:
    result = pools(1)
    assert auc_pseudo_values(*result, 61)[60] == pytest.approx(pooled_auc(result[0], result[1]))


def test_an_empty_pool_is_refused() -> None:
    none, some, of = np.zeros(0), np.ones(1), np.zeros(1, np.int64)
    with pytest.raises(MetricInputError, match="a pool without scores"):
        auc_pseudo_values(none, some, np.zeros(0, np.int64), of, 1)
