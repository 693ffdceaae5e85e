"""Tests of differences: their intervals, which model is the best of a column, and how a run's table says it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from raytriever.evaluation.differences.significance import (
    best_models,
    best_rows,
    pair_rows,
    read_best_rows,
    significance_points,
    significance_rows,
)
from raytriever.evaluation.tables import metrics_table, training_notes
from raytriever.metrics.significance import holm, paired_t_test
from raytriever.mining.analyser import analyser_line

Table = dict[str, dict[str, dict[str, np.ndarray]]]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 60))
def test_the_interval_of_a_difference_is_scipys(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(0.1, 1, count), rng.normal(size=count)
    test = paired_t_test(ours, theirs)
    result = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (test.low, test.high) == pytest.approx((result.low, result.high), abs=1e-9)
    assert (test.low <= 0 <= test.high) == (test.p_value >= 0.05)


def table(shifts: dict[str, list[float]], queries: int = 40) -> Table:
    """Values by model, data set and metric: one shift a data set over the same noise of queries."""
    rng = np.random.default_rng(3)
    noise = {model: rng.normal(0, 0.1, (9, queries)) for model in shifts}
    return {
        model: {f"d{i}": {"ndcg_at_10": 0.5 + shift + noise[model][i]} for i, shift in enumerate(row)}
        for model, row in shifts.items()
    }


def figures(values: Table) -> dict[str, dict[str, dict[str, float | None]]]:
    return {
        model: {name: {metric: float(one.mean()) for metric, one in row.items()} for name, row in sets.items()}
        for model, sets in values.items()
    }


def test_only_what_is_above_every_other_model_by_more_than_noise_is_best() -> None:
    values = table({"a": [0.0, 0.0, 0.0], "b": [0.3, 0.0, 0.3], "c": [0.1, 0.0, 0.3]})
    best = best_models(figures(values), values)
    # Of the first data set all three differ; of the second none; of the third two are alike.
    assert best["d0", "ndcg_at_10"] == ["b", "c"]
    assert ("d1", "ndcg_at_10") not in best
    assert ("d2", "ndcg_at_10") not in best
    assert best[None, "ndcg_at_10"] == ["b", "c"]
    assert read_best_rows(best_rows(best)) == best


def test_the_largest_p_value_counts_after_holms_correction() -> None:
    values = table({"a": [0.045] * 9, "b": [0.0] * 9})
    p = [
        paired_t_test(values["a"][name]["ndcg_at_10"], values["b"][name]["ndcg_at_10"]).p_value for name in values["a"]
    ]
    alone = {name for name, one in zip(values["a"], p, strict=True) if one < 0.05}
    corrected = {name for name, one in zip(values["a"], holm(p), strict=True) if one < 0.05}
    best = best_models(figures(values), values)
    assert {name for name, _ in best if name} == corrected < alone


def test_what_cannot_be_tested_has_no_best() -> None:
    values = table({"a": [0.0], "b": [0.5]})
    shown = figures(values)
    assert best_models({"b": shown["b"]}, values) == {}
    assert best_models({**shown, "c": {"d0": {"ndcg_at_10": 0.1}}}, values) == {}  # without values a query
    values["b"]["d0"]["ndcg_at_10"] = values["b"]["d0"]["ndcg_at_10"][:-1]  # of other queries
    assert best_models(shown, values) == {}


def test_a_runs_table_says_whether_training_changed_anything() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(50)
    values = {
        "bm25": {"set": {"ndcg_at_10": rng.random(50), "auc": rng.random(50)}},
        "before": {"set": {"ndcg_at_10": before, "auc": before}},
        "after": {"set": {"ndcg_at_10": before + rng.normal(0.2, 0.1, 50), "auc": before + rng.normal(0.0, 0.1, 50)}},
    }
    rows, pairs = significance_rows(values, ["before"]), pair_rows(values)
    names = {"bm25": "BM25", "before": "encoder before", "after": "encoder after"}
    judged = {"absent_relevant": 2, "relevant": 60, "unanswerable_queries": 0}
    first, head, best, *lines = training_notes({"pairs": pairs, "judged": judged}, names).splitlines()
    assert first.startswith("2 of 60 relevant documents are not in the corpus.")
    assert head == "All pairs: paired t-test; p after Holm's correction over the pairs, intervals without it"
    assert best == "  nDCG@10: encoder after is the best, significantly above every other"
    results = {row["metric"]: row for row in rows if row["model"] == "after"}
    one = results["ndcg_at_10"]
    assert (
        f"    encoder after - encoder before  {one['difference']:+.4f}  95 % {one['low']:+.4f}" in lines[0] + lines[1]
    )
    assert lines[0].endswith("p < 0.0001  significant")
    assert lines[3].startswith("  AUC: ")
    assert " has the highest mean, not significantly above " in lines[3]
    assert {row["metric"] for row in pairs} == {"ndcg_at_10", "auc"}
    assert [row["queries"] for row in pairs] == [50] * 6
    assert all(row["difference"] >= 0 and row["p_holm"] >= row["p"] for row in pairs)
    analyser = {"warning": "BM25 finds 2.0 tokens per document."}
    assert training_notes({"bm25_analyser": analyser}, names).splitlines() == [
        analyser_line(analyser),
        analyser["warning"],
    ]
    assert training_notes({}, names) == ""  # of a run of an earlier version
    points = {point.name: point.value for point in significance_points(rows, 7, 0, several=False)}
    assert points["significance/after-before/ndcg_at_10_p"] == one["p_holm"]
    assert points["significance/after-before/ndcg_at_10_low"] == one["low"]
    assert len(points) == 4 * len(rows)
    assert significance_points(rows, 7, 0)[0].name == "significance/bm25-before/set/ndcg_at_10_difference"


def test_titles_of_a_printed_table_never_touch() -> None:
    names = ["recall_at_1000000", "query_auc", "AUC per query"]
    rows = {"one": dict.fromkeys(names, 0.5), "o\x07ne": dict.fromkeys(names, 0.25)}
    head, first, second = metrics_table(rows).splitlines()
    assert re.split(" {2,}", head.strip()) == ["Recall@1000000", "AUC per query", "AUC per query-2"]
    assert first.split()[1:] == ["0.5000"] * 3
    assert second.split()[1:] == ["0.2500"] * 3
    assert first.split()[0] != second.split()[0]
