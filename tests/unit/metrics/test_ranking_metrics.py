"""Ranking metrics by name, against trec_eval's own code, which BEIR's evaluator averages over queries."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering import order_results

from raytriever.metrics.metric_inputs import MetricInputError
from raytriever.metrics.ranking_metrics import (
    DEFAULT_METRICS,
    RANKING_METRICS,
    Relevance,
    accuracy,
    evaluate_ranking,
    mrr,
    ranking_metric,
    title,
)
from raytriever.retrieval.index.exact_top_k import tie_order

TREC_NAMES = {
    "ndcg_at_10": "ndcg_cut_10",
    "ndcg": "ndcg",
    "recall_at_100": "recall_100",
    "recall_at_3": "recall_3",
    "map": "map",
    "map_at_3": "map_cut_3",
    "precision_at_5": "P_5",
    "success_at_1": "success_1",
    "success_at_5": "success_5",
    "r_precision": "Rprec",
    "mrr": "recip_rank",
}


def judged(grades: np.ndarray) -> Relevance:
    """Judgements of a table of grades, unjudged where it says -2."""
    q, d = np.nonzero(grades > -2)
    return Relevance(q, d, grades[q, d].astype(np.int64), len(grades))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    queries=st.integers(1, 6),
    documents=st.integers(1, 150),
    level=st.integers(1, 3),
    fraction=st.floats(0, 1),
)
def test_equals_trec_eval_with_ties_grades_and_what_is_missing(
    seed: int, queries: int, documents: int, level: int, fraction: float
) -> None:
    rng = np.random.default_rng(seed)
    ids = [f"d{i}" for i in rng.permutation(documents)]
    scores = rng.integers(-2, 3, (queries, documents)) * rng.choice([0.1, 1e-9, 1e30])
    grades = rng.choice([-2, -1, 0, 0, 1, 2, 3], (queries, documents))
    grades[:, 0] = level  # pytrec_eval skips a query without judgements
    listed = rng.random((queries, documents)) < fraction
    ranking = order_results(scores, np.where(listed, np.arange(documents), -1), tie_order(ids))
    ours = evaluate_ranking(ranking, judged(grades), TREC_NAMES, level)

    qrels = {
        f"q{i}": {ids[j]: int(grades[i, j]) for j in range(documents) if grades[i, j] > -2} for i in range(queries)
    }
    run = {f"q{i}": {ids[j]: float(scores[i, j]) for j in np.flatnonzero(listed[i])} for i in range(queries)}
    run = {query: score_of for query, score_of in run.items() if score_of}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(TREC_NAMES.values()), relevance_level=level).evaluate(run)
    for name, trec in TREC_NAMES.items():
        # pytrec_eval leaves out a query without results; it counts 0 here.
        expected = [theirs[f"q{i}"][trec] if f"q{i}" in theirs else 0.0 for i in range(queries)]
        np.testing.assert_allclose(ours[name], expected, atol=1e-6, err_msg=name)

    cut = {
        query: dict(sorted(score_of.items(), key=lambda x: (np.float32(x[1]), x[0]))[-4:])
        for query, score_of in run.items()
    }
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}, relevance_level=level).evaluate(cut)
    expected = [theirs[f"q{i}"]["recip_rank"] if f"q{i}" in theirs else 0.0 for i in range(queries)]
    np.testing.assert_allclose(evaluate_ranking(ranking, judged(grades), ["mrr_at_4"], level)["mrr_at_4"], expected)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), cutoff=st.integers(1, 12))
def test_accuracy_is_trec_evals_success_over_passages_with_the_answer(seed: int, cutoff: int) -> None:
    hits = np.random.default_rng(seed).random((4, 10)) < 0.1
    qrels = {f"q{i}": {f"d{j}": int(hits[i, j]) for j in range(10)} for i in range(4)}
    run = {f"q{i}": {f"d{j}": -float(j) for j in range(10)} for i in range(4)}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {f"success.{cutoff}"}).evaluate(run)
    assert accuracy(hits, cutoff).tolist() == [theirs[f"q{i}"][f"success_{cutoff}"] for i in range(4)]


def test_judged_counts_grades_of_any_value_over_what_was_found() -> None:
    relevance = Relevance(np.array([0, 0, 1]), np.array([5, 7, 5]), np.array([0, -1, 2]), 3)
    ranking = np.array([[5, 6, 7, 8], [5, 6, -1, -1], [-1, -1, -1, -1]])
    result = evaluate_ranking(ranking, relevance, ["judged_at_3", "judged_at_1"])
    assert result["judged_at_3"].tolist() == [2 / 3, 1 / 2, 0]
    assert result["judged_at_1"].tolist() == [1, 1, 0]


ALL = [f"{name}_at_5" if metric.cutoff != "never" else name for name, metric in RANKING_METRICS.items()]


def test_without_judgements_everything_is_zero() -> None:
    none = np.empty(0, np.int64)
    assert all(
        not values.any()
        for values in evaluate_ranking(np.array([[4, 2]]), Relevance(none, none, none, 1), ALL).values()
    )


def test_a_document_beyond_every_judged_one_is_not_taken_for_another() -> None:
    relevance = Relevance(np.array([1]), np.array([1]), np.array([1]), 2)
    gains = relevance.gains(np.array([[3, 5], [1, 0]]))
    assert gains.tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize(
    ("ranking", "judgements", "message"),
    [
        ([[1, 2, 1]], ([0], [1], [1]), "ranking of query 0: a document is ranked twice"),
        ([[1, 2]], ([0, 0], [1, 1], [1, 2]), "judgements of query 0: document 1 is judged twice"),
        ([[1, 2]], ([1], [1], [1]), "a judgement belongs to no query"),
        ([[1], [2]], ([0], [1], [1]), "a row for each of the 1 queries"),
    ],
)
def test_contradictions_are_errors(ranking: list, judgements: tuple, message: str) -> None:
    relevance = Relevance(*(np.array(column) for column in judgements), 1)
    with pytest.raises(MetricInputError, match=message):
        evaluate_ranking(np.array(ranking), relevance)


def test_names_and_titles() -> None:
    assert ranking_metric("mrr_at_10")[0].compute is mrr
    assert ranking_metric("mrr_at_10")[1] == 10
    assert ranking_metric("map")[1] is None
    assert [title(name) for name in DEFAULT_METRICS] == ["nDCG@10", "MRR@10", "Recall@100"]
    assert title("r_precision") == "R-Prec"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndgc_at_10", "did you mean 'ndcg'"),
        ("precision", "write it as 'precision_at_10'"),
        ("r_precision_at_3", "write it as 'r_precision'"),
        ("ndcg_at_0", "write it as 'ndcg_at_10'"),
        ("ndcg_at_", "write it as 'ndcg_at_10'"),
        ("ndcg_at_-1", "write it as 'ndcg_at_10'"),
    ],
)
def test_what_is_no_metric_is_an_error(name: str, message: str) -> None:
    with pytest.raises(MetricInputError, match=message):
        ranking_metric(name)
