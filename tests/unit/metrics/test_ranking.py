"""Ranking metrics against trec_eval's own code."""

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from raytriever.index.exact import tie_order
from raytriever.metrics.registry import measure_ranking
from raytriever.metrics.relevance import Relevance

TREC_NAMES = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100"}


def ranking_of(scores: np.ndarray, ids: list[str]) -> np.ndarray:
    ties = tie_order(ids)
    return np.stack([np.lexsort((ties, -row)) for row in scores.astype(np.float32)])


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(1, 6), documents=st.integers(1, 150))
def test_equals_trec_eval_with_ties_and_grades(seed: int, queries: int, documents: int) -> None:
    rng = np.random.default_rng(seed)
    ids = [f"d{i}" for i in rng.permutation(documents)]
    scores = rng.integers(0, 5, (queries, documents)).astype(np.float64)
    grades = rng.choice([-1, 0, 0, 0, 1, 2, 3], (queries, documents))
    grades[:, 0] = 1
    q, d = np.nonzero(grades)
    relevance = Relevance(q, d, grades[q, d].astype(np.int64), queries)
    ours = measure_ranking(ranking_of(scores, ids), relevance)

    qrels = {f"q{i}": {ids[j]: int(grades[i, j]) for j in range(documents)} for i in range(queries)}
    run = {f"q{i}": {ids[j]: float(scores[i, j]) for j in range(documents)} for i in range(queries)}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(TREC_NAMES.values())).evaluate(run)
    for name, trec in TREC_NAMES.items():
        np.testing.assert_allclose(ours[name], [theirs[f"q{i}"][trec] for i in range(queries)], atol=1e-6)


def test_mrr_ends_at_its_cutoff() -> None:
    relevance = Relevance(np.array([0, 1]), np.array([9, 10]), np.array([1, 1]), 2)
    ranking = np.stack([np.arange(20), np.arange(20)])
    assert measure_ranking(ranking, relevance)["mrr_at_10"].tolist() == [0.1, 0.0]


def test_a_query_with_an_empty_ranking_counts_zero() -> None:
    relevance = Relevance(np.array([0]), np.array([3]), np.array([2]), 1)
    assert all(values.tolist() == [0.0] for values in measure_ranking(np.full((1, 5), -1), relevance).values())


def test_a_document_beyond_every_judged_one_is_not_taken_for_another() -> None:
    # With too small a stride, (query 0, document 5) and (query 1, document 3) would share a key.
    relevance = Relevance(np.array([1]), np.array([1]), np.array([1]), 2)
    gains = relevance.gains(np.array([[3, 5], [1, 0]]))
    assert gains.tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("name", ["ndcg_at_10", "mrr_at_10", "recall_at_100"])
def test_perfect_is_one(name: str) -> None:
    relevance = Relevance(np.array([0, 0]), np.array([4, 2]), np.array([3, 1]), 1)
    assert measure_ranking(np.array([[4, 2, 0, 1, 3]]), relevance)[name].tolist() == [1.0]
