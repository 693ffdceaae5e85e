"""Tests of differences: their intervals, which model is the best of a column, and how a run's table says it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from raytriever.evaluation.differences.system_significance import best_models, collect_marks, pair_rows, pairs_with
from raytriever.evaluation.report_document import format_results, points_of
from raytriever.evaluation.result_tables import ReportTable
from raytriever.evaluation.results import About, AnalysisAbout, Results
from raytriever.metrics.significance_tests import holm, paired_t_test
from raytriever.retrieval.mining.bm25_analyzer import analyzer_line

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
        model: {name: {metric: float(value.mean()) for metric, value in row.items()} for name, row in sets.items()}
        for model, sets in values.items()
    }


def test_only_what_is_above_every_other_model_by_more_than_noise_is_best() -> None:
    values = table({"a": [0.0, 0.0, 0.0], "b": [0.3, 0.0, 0.3], "c": [0.1, 0.0, 0.3]})
    best = best_models(pair_rows(values), figures(values))
    # Of the first data set all three differ; of the second none; of the third two are alike.
    assert best["d0", "ndcg_at_10"] == ["b", "c"]
    assert ("d1", "ndcg_at_10") not in best
    assert ("d2", "ndcg_at_10") not in best
    assert best[None, "ndcg_at_10"] == ["b", "c"]


def test_all_tests_of_a_metric_are_corrected_together() -> None:
    values = table({"a": [0.045] * 9, "b": [0.0] * 9})
    rows = pair_rows(values)
    means = {model: np.concatenate([value["ndcg_at_10"] for value in sets.values()]) for model, sets in values.items()}
    p = [ttest_rel(*(values[model][name]["ndcg_at_10"] for model in "ab")).pvalue for name in values["a"]]
    p.append(ttest_rel(means["a"], means["b"]).pvalue)  # equal data sets: their mean is that of all queries
    assert [row.dataset for row in rows] == [*values["a"], None]
    assert [row.p for row in rows] == pytest.approx(p)
    assert [row.p_holm for row in rows] == pytest.approx(holm(p))
    alone = {row.dataset for row in rows if row.p < 0.05}
    assert {name for name, _ in best_models(rows, figures(values))} < alone


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(0, 0.1))
def test_marks_and_bold_figures_agree_with_the_pairs(seed: int, shift: float) -> None:
    """Three systems whose differences are near the level: no place may call significant what another one does not."""
    rng = np.random.default_rng(seed)
    values = {
        model: {name: {"map": rng.normal(number * shift, 0.15, 30)} for name in ("d0", "d1")}
        for number, model in enumerate(("base", "a", "b"))
    }
    rows = pair_rows(values)
    significant = {(row.dataset, row.model, row.against) for row in rows if row.p_holm < 0.05}
    marks = collect_marks(rows, ["base", "a"])
    for dataset in ("d0", "d1", None):
        for model in values:
            expected = ""
            for baseline, (above, below) in {"base": "+-", "a": "◆◇"}.items():
                expected += above * ((dataset, model, baseline) in significant)
                expected += below * ((dataset, baseline, model) in significant)
            assert marks.get((dataset, model, "map"), "") == expected
        ahead = best_models(rows, figures(values)).get((dataset, "map"), [])
        for rank, model in enumerate(ahead):
            assert all((dataset, model, other) in significant for other in values if other not in ahead[: rank + 1])


def test_what_cannot_be_tested_has_no_best() -> None:
    values = table({"a": [0.0], "b": [0.5]})
    shown = figures(values)
    assert best_models(pair_rows(values), shown) == {("d0", "ndcg_at_10"): ["b"]}
    assert best_models(pair_rows(values), {"b": shown["b"]}) == {}
    untested = {**shown, "c": {"d0": {"ndcg_at_10": 0.1}}}  # without values a query
    assert best_models(pair_rows(values), untested) == {}
    values["b"]["d0"]["ndcg_at_10"] = values["b"]["d0"]["ndcg_at_10"][:-1]  # of other queries
    assert pair_rows(values) == []
    assert pair_rows(table({"a": [0.0], "b": [0.5]}, queries=1)) == []


def test_a_runs_table_says_whether_training_changed_anything() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(50)
    values = {
        "bm25": {"set": {"ndcg_at_10": rng.random(50), "auc": rng.random(50)}},
        "before": {"set": {"ndcg_at_10": before, "auc": before}},
        "after": {"set": {"ndcg_at_10": before + rng.normal(0.2, 0.1, 50), "auc": before + rng.normal(0.0, 0.1, 50)}},
    }
    pairs = pair_rows(values)
    rows = pairs_with(pairs, "before")
    analysis = AnalysisAbout(language="en", warning="BM25 finds 2.0 tokens per document.")
    about = About(50, 90, "test", absent_relevant=2, relevant=60, unanswerable_queries=0, bm25={"set": analysis})
    results = Results(pairs=pairs, about={"set": about}, baselines=["before"], models=figures(values))
    _, title, *shown = format_results(results).splitlines()
    *_, first, warning, analyzer, legend = shown[:8]
    assert title == "test split of set"
    assert first.startswith("2 of 60 relevant documents are not in the corpus.")
    assert legend.startswith("+ and -: significantly above and below before; paired t-test")
    head, best, *lines = shown[8:]
    assert head == "All pairs: paired t-test; p after Holm's correction over the pairs, intervals without it"
    assert best == "  nDCG@10: after is the best, significantly above every other"
    one = next(row for row in rows if (row.model, row.metric) == ("after", "ndcg_at_10"))
    assert f"    after - before  {one.difference:+.4f}  95 % {one.low:+.4f}" in lines[0] + lines[1]
    assert lines[0].endswith("p < 0.0001  significant")
    assert lines[3].startswith("  AUC: ")
    assert " has the highest mean, not significantly above " in lines[3]
    assert {row.metric for row in pairs} == {"ndcg_at_10", "auc"}
    assert [row.queries for row in pairs] == [50] * 6
    assert all(row.difference >= 0 and row.p_holm >= row.p for row in pairs)
    assert (warning, analyzer) == (analysis["warning"], analyzer_line(analysis))
    points = {point.name: point.value for point in points_of(results)}
    assert points["significance/after-before/set/ndcg_at_10_p"] == one.p_holm
    assert points["significance/after-before/set/ndcg_at_10_low"] == one.low
    assert points["after/set/auc"] == results.models["after"]["set"]["auc"]
    assert "significance/bm25-before/set/ndcg_at_10_difference" in points
    lower = next(row for row in pairs_with(pairs, "after") if row.model == "before")
    upper = next(row for row in pairs if (row.model, row.against) == ("after", "before"))
    assert (lower.difference, lower.low, lower.high) == (-upper.difference, -upper.high, -upper.low)
    assert lower.p_holm == upper.p_holm


def test_titles_of_a_printed_table_never_touch() -> None:
    columns = ["", "Recall@1000000", "AUC per query", "AUC per query"]
    rows = [["one", *3 * ["0.5000"]], ["o\x07ne", *3 * ["0.2500"]]]
    head, first, second = ReportTable("", columns, rows).as_text().splitlines()
    assert re.split(" {2,}", head.strip()) == ["Recall@1000000", "AUC per query", "AUC per query-2"]
    assert first.split()[1:] == ["0.5000"] * 3
    assert second.split()[1:] == ["0.2500"] * 3
    assert first.split()[0] != second.split()[0]
