"""Recall, candidates and rates of an index, and the shift of the control set."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
import torch
from synthetic import control

from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_recall import evaluate_recall, one_thread
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.exact_top_k import top_k
from search_size import at_recall, search_sizes

SET = control(1_000, 50, seed=4, dim=24, rank=8, common=4, own=2)
TRUE = top_k(SET.shifted, SET.documents, 10, np.arange(1_000))[1]


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("kind", ["ivf", "roargraph", "vamana"])
def test_candidates_at_a_recall_lie_between_those_of_the_nearest_efforts(kind: str) -> None:
    index = build_index(SET.documents, IndexConfig(index=kind), SET.training, 0, 1)
    points = [
        evaluate_recall(index, SET.shifted, TRUE, search_size, timed=False) for search_size in search_sizes(index, 10)
    ]
    target = points[0].recall * 0.75 + points[1].recall * 0.25
    actual = at_recall(index, SET.shifted, TRUE, target)
    assert actual.search_size == points[1].search_size
    if kind == "vamana":
        assert isnan(actual.candidates)
    else:
        expected = points[0].candidates ** 0.75 * points[1].candidates ** 0.25
        assert points[0].candidates < actual.candidates < points[1].candidates
        assert actual.candidates == pytest.approx(expected, rel=1e-6)
    assert points[-1].recall == pytest.approx(1.0, abs=0.02)
    least = at_recall(index, SET.shifted, TRUE, 0.0)
    assert (least.search_size, least.recall) == (points[0].search_size, points[0].recall)
    assert isnan(at_recall(index, SET.shifted, TRUE, 1.1).candidates)


def test_rates_are_measured_on_one_thread() -> None:
    index = build_index(SET.documents, IndexConfig(index="flat"), None, 0, 1)
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    point = evaluate_recall(index, SET.shifted, TRUE, 1)
    assert (point.recall, point.candidates) == (1.0, 1_000.0)
    assert point.qps > 0
