"""Agreement with BEIR's evaluator, which is a loop around pytrec_eval, written here as BEIR writes it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from raytriever.index.exact.search import tie_order
from raytriever.metrics.ranking import Relevance, mean, measure_ranking

sys.path.append(str(Path(__file__).parents[2] / "support"))
from ordering import order_results

CUTOFFS = (1, 3, 10, 100)
NAMES = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P"}


def as_beir_does(qrels: dict[str, dict[str, int]], results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Drop what bears the query's own id, evaluate, sum over the queries that come back, divide by their number."""
    results = {query: {d: s for d, s in score_of.items() if d != query} for query, score_of in results.items()}
    wanted = {f"{trec}." + ",".join(map(str, CUTOFFS)) for trec in NAMES.values()}
    scores = pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(results)
    return {
        f"{name}_at_{k}": round(sum(scores[query][f"{trec}_{k}"] for query in scores) / len(scores), 5)
        for name, trec in NAMES.items()
        for k in CUTOFFS
    }


@pytest.mark.parametrize("seed", range(3))
def test_means_are_beirs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents, queries = 120, 15
    ids = [f"t{i}" for i in rng.permutation(documents)]  # queries are texts of the corpus, as in ArguAna
    grades = rng.choice([0, 0, 0, 0, 0, 1, 2], (queries, documents))
    grades[:, -1] = 1
    np.fill_diagonal(grades, 0)
    scores = np.round(rng.normal(size=(queries, documents)), 1).astype(np.float32)
    np.fill_diagonal(scores, 9)

    qrels = {ids[q]: {ids[d]: int(g) for d, g in enumerate(row) if g} for q, row in enumerate(grades)}
    results = {ids[q]: {ids[d]: float(s) for d, s in enumerate(row)} for q, row in enumerate(scores)}
    theirs = as_beir_does(qrels, results)

    listed = np.tile(np.arange(documents), (queries, 1))
    np.fill_diagonal(listed, -1)
    q, d = np.nonzero(grades)
    relevance = Relevance(q, d, grades[q, d].astype(np.int64), queries)
    ours = measure_ranking(order_results(scores, listed, tie_order(ids)), relevance, theirs)
    for name, value in theirs.items():
        assert round(mean(ours[name], relevance), 5) == pytest.approx(value, abs=1.1e-5), name


def test_where_beir_differs_a_query_without_results_counts_here() -> None:
    relevance = Relevance(np.array([0, 1]), np.array([0, 0]), np.array([1, 1]), 2)
    theirs = as_beir_does({"a": {"x": 1}, "b": {"x": 1}}, {"a": {"x": 1.0}})
    ours = measure_ranking(np.array([[0], [-1]]), relevance, ["recall_at_1"])
    assert (theirs["recall_at_1"], mean(ours["recall_at_1"], relevance)) == (1.0, 0.5)
