"""Significance tests of an evaluation: models against baselines, all pairs, and the best model of each column.

All use the two-sided paired t-test over queries, with Holm's correction over the data sets. The pooled AUC has no
value per query; its pseudo-values are used instead (`metrics.auc`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.protocol import AUC, metric_title
from raytriever.metrics.auc import auc_pseudo_values
from raytriever.metrics.significance import (
    FIRST_MARKS,
    LEVEL,
    SECOND_MARKS,
    holm,
    paired_t_test,
)
from raytriever.tracking.tracker import Point

MOST_LINES = 40  # of all pairs on a terminal
# Values of each query, and figures, by model, data set and metric.
Values = Mapping[str, Mapping[str, Mapping[str, ndarray]]]
Figures = Mapping[str, Mapping[str, Mapping[str, float | None]]]
# The best model, or the best and the second, by data set (None for the mean over them) and metric.
Best = Mapping[tuple[str | None, str], Sequence[str]]
Column = TypeVar("Column", bound=Hashable)


def best_rule(test: str) -> str:
    """Return the sentence that explains bold and underlined figures, with the name of the test."""
    return (
        f"Bold is significantly above every other of its column, and underlined above all but that one: {test}, "
        f"p < {LEVEL} after Holm's correction over the data sets. A column without bold has no significant best."
    )


@activity("testing the differences")
def significance_rows(values: Values, baselines: Sequence[str]) -> list[dict[str, Any]]:
    """Test every model against every baseline, on every metric that has a value for each query.

    Queries without a value (such as the AUC of a query whose documents are all relevant) are left out for both models.
    Data sets with fewer than two queries are left out too, because they allow no test.

    Args:
        values: values of each query by model, data set and metric; on a data set all models have the same queries.
        baselines: one or two models; marks are `+` and `-` against the first, `◆` and `◇` against the second.

    Returns:
        Rows of `dataset`, `metric`, `model`, `against`, `difference` (mean of model - baseline), `low` and `high` (its
        95 % interval), `p` (two-sided paired t-test), `p_holm`, `effect` (Cohen's d_z), `queries`, `mark`.
    """
    rows = []
    for baseline, marks in zip(baselines, (FIRST_MARKS, SECOND_MARKS), strict=False):
        for model in values:
            if model == baseline:
                continue
            for metric in _metrics(values[model]):
                pairs = _pairs(values, metric, model, baseline)
                tests = {dataset: _test(*pair) for dataset, pair in pairs.items()}
                corrected = holm([one["p"] for one in tests.values()])
                for index, (dataset, one) in enumerate(tests.items()):
                    p_holm = float(corrected[index])
                    rows.append(
                        {
                            "dataset": dataset,
                            "metric": metric,
                            "model": model,
                            "against": baseline,
                            **{name: one[name] for name in ("difference", "low", "high", "p")},
                            "p_holm": p_holm,
                            "effect": one["effect"],
                            "queries": one["queries"],
                            "mark": marks[one["difference"] < 0] if p_holm < LEVEL else "",
                        }
                    )
    return rows


@activity("testing all pairs")
def pair_rows(values: Values) -> list[dict[str, Any]]:
    """Test every pair of systems, on every metric that has a value for each query.

    Holm's correction counts all pairs on all data sets of a metric, so the probability of any false difference of the
    metric stays at 5 %.

    Returns:
        Rows of `dataset`, `metric`, `model` (the better one), `against`, `difference` (at least 0), `low` and `high`
        (its 95 % interval), `p`, `p_holm`, `effect` (Cohen's d_z) and `queries`.
    """
    rows = []
    for metric in dict.fromkeys(name for sets in values.values() for name in _metrics(sets)):
        tested = []
        for first, second in itertools.combinations(values, 2):
            for dataset, (ours, theirs) in _pairs(values, metric, first, second).items():
                is_better = ours.mean() >= theirs.mean()
                better, worse = (first, second) if is_better else (second, first)
                names: dict[str, Any] = {"dataset": dataset, "metric": metric, "model": better, "against": worse}
                tested.append(names | (_test(ours, theirs) if is_better else _test(theirs, ours)))
        for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
            rows.append(row | {"p_holm": float(p)})
    return rows


def _metrics(sets: Mapping[str, Mapping[str, ndarray]]) -> list[str]:
    return list(dict.fromkeys(name for values in sets.values() for name in values))


def _pairs(values: Values, metric: str, model: str, other: str) -> dict[str, tuple[ndarray, ndarray]]:
    """Return the values of two models by data set, of the queries with a value of both; at least two."""
    pairs = {}
    for dataset in values[model]:
        ours, theirs = (values.get(name, {}).get(dataset, {}).get(metric) for name in (model, other))
        if ours is None or theirs is None or len(ours) != len(theirs):  # runs that are compared may have other queries
            continue
        valued = np.isfinite(ours) & np.isfinite(theirs)
        if valued.sum() >= 2:
            pairs[dataset] = ours[valued], theirs[valued]
    return pairs


def _test(ours: ndarray, theirs: ndarray) -> dict[str, Any]:
    test = paired_t_test(ours, theirs)
    return {
        "difference": test.difference,
        "low": test.low,
        "high": test.high,
        "p": test.p_value,
        "effect": test.effect if np.isfinite(test.effect) else None,  # JSON has no infinite number
        "queries": len(ours),
    }


def collect_marks(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], str]:
    """Return the marks by (data set, model, metric); marks against the first baseline come first."""
    marks: dict[tuple[str, str, str], str] = {}
    for row in rows:
        key = (row["dataset"], row["model"], row["metric"])
        marks[key] = marks.get(key, "") + row["mark"]
    return marks


def testable_values(evaluation: Evaluation) -> dict[str, Float64[ndarray, " queries"]]:
    """Return values of each query for every metric that can be tested; for the pooled AUC its pseudo-values."""
    values = dict(evaluation.per_query)
    if np.isfinite(evaluation.metrics.get(AUC, np.nan)):
        values[AUC] = auc_pseudo_values(
            evaluation.positive_scores,
            evaluation.negative_scores,
            evaluation.positive_queries,
            evaluation.negative_queries,
            len(evaluation.queries),
        )
    return values


def significance_points(
    rows: Sequence[Mapping[str, Any]], step: int, milliseconds: int, several: bool = True
) -> list[Point]:
    """Return the tests as points for the tracker.

    Their names include the data set if there are several, `significance/MODEL-BASELINE/DATASET/METRIC_p`.
    """
    points = []
    for row in rows:
        parts = [f"{row['model']}-{row['against']}", *([row["dataset"]] if several else []), row["metric"]]
        name = f"significance/{'/'.join(parts)}"
        points += [Point(f"{name}_{part}", row[part], step, milliseconds) for part in ("difference", "low", "high")]
        points += [Point(f"{name}_p", row["p_holm"], step, milliseconds)]
    return points


def best_models(figures: Figures, values: Values) -> Best:
    """Find the best model, or the best and the second, by data set and metric, as far as they are significantly so.

    The data set None is the mean over the data sets, which is tested if all models have all of them.
    """
    datasets = list(dict.fromkeys(name for sets in figures.values() for name in sets))
    metrics = list(dict.fromkeys(name for sets in figures.values() for one in sets.values() for name in one))
    best: dict[tuple[str | None, str], list[str]] = {}
    for metric in metrics:
        columns: dict[str | None, dict[str, ndarray]] = {
            name: _tested_column(figures, values, name, metric) for name in datasets
        }
        found = _best_of(columns)
        if len(datasets) > 1 and all(len(column) == len(figures) for column in columns.values()):
            found |= _best_of({None: {one: _weighted([columns[name][one] for name in datasets]) for one in figures}})
        best |= {(name, metric): models for name, models in found.items()}
    return best


def _best_of(columns: Mapping[Column, Mapping[str, ndarray]]) -> dict[Column, list[str]]:
    ordered = {name: sorted(column, key=lambda model: -float(column[model].mean())) for name, column in columns.items()}
    return find_best(ordered, lambda name, one, other: paired_t_test(columns[name][one], columns[name][other]).p_value)


def find_best(
    ordered: Mapping[Column, Sequence[str]], p_value: Callable[[Column, str, str], float]
) -> dict[Column, list[str]]:
    """Find the best row of each column, or the best and the second; rows are given with the highest mean first.

    A row is the best if it is above each other row by the test, at the largest of these p-values after Holm's
    correction over the columns. It is the second if it is so above each of the rest.
    """
    best: dict[Column, list[str]] = {}
    for rank in (0, 1):
        tests = {
            column: max(p_value(column, rows[rank], other) for other in rows[rank + 1 :])
            for column, rows in ordered.items()
            if len(rows) > rank + 1 and len(best.get(column, ())) == rank
        }
        for column, p in zip(tests, holm(list(tests.values())), strict=True):
            if p < LEVEL:
                best.setdefault(column, []).append(ordered[column][rank])
    return best


def best_rows(best: Best) -> list[dict[str, Any]]:
    """Return the best models as rows of `results.json`; the mean over the data sets has the data set null."""
    return [{"dataset": name, "metric": metric, "models": list(models)} for (name, metric), models in best.items()]


def read_best_rows(rows: Sequence[Mapping[str, Any]]) -> Best:
    """Return the best models that `best_rows` wrote as rows."""
    return {(row["dataset"], row["metric"]): list(row["models"]) for row in rows}


def _tested_column(figures: Figures, values: Values, dataset: str, metric: str) -> dict[str, ndarray]:
    """Return the values of all models that a column shows; empty if one of them cannot be tested."""
    models = [model for model in figures if figures[model].get(dataset, {}).get(metric) is not None]
    rows = {model: values.get(model, {}).get(dataset, {}).get(metric) for model in models}
    if any(row is None for row in rows.values()) or len({len(row) for row in rows.values() if row is not None}) != 1:
        return {}
    table = {model: np.asarray(row, np.float64) for model, row in rows.items()}
    valued = np.logical_and.reduce([np.isfinite(one) for one in table.values()])
    return {model: one[valued] for model, one in table.items()} if valued.sum() >= 2 else {}


def _weighted(columns: Sequence[ndarray]) -> ndarray:
    """Join the values of all data sets, weighted so that their mean is the mean of the data sets' means."""
    total = sum(map(len, columns))
    return np.concatenate([column * (total / (len(columns) * len(column))) for column in columns])


def best_sentences(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None) -> list[str]:
    """Name the best system of each metric on each data set, and those that are not significantly below it."""
    several = len({row["dataset"] for row in rows}) > 1
    return [
        _best_sentence(own, names or {}) + (f" on {own[0]['dataset']}" if several else "") for own in _by_column(rows)
    ]


def _by_column(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    columns: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        columns.setdefault((row["dataset"], row["metric"]), []).append(row)
    return list(columns.values())


def _best_sentence(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    wins = Counter(row["model"] for row in rows)
    best = wins.most_common(1)[0][0]
    near = [row for row in rows if row["model"] == best and row["p_holm"] >= LEVEL]
    title, name = metric_title(rows[0]["metric"]), names.get(best, best)
    if not near:
        return f"{title}: {name} is the best, significantly above every other"
    others = " and ".join(f"{names.get(row['against'], row['against'])} ({format_p(row['p_holm'])})" for row in near)
    return f"{title}: {name} has the highest mean, not significantly above {others}"


def format_p(p: float) -> str:
    """Format a p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p {p:.4f}"


def pair_lines(
    rows: Sequence[Mapping[str, Any]],
    names: Mapping[str, str] | None = None,
    most: int | None = MOST_LINES,
    test: str = "paired t-test",
) -> list[str]:
    """Describe all pairs: for each metric the best system, then a line for each pair, the largest difference first.

    Of more than `most` pairs only the sentences on the best systems are given.
    """
    if not rows:
        return []
    shown = dict(names or {})
    several = len({row["dataset"] for row in rows}) > 1
    over = f"the pairs{' and data sets' * several}"
    lines = [f"All pairs: {test}; p after Holm's correction over {over}, intervals without it"]
    for own, sentence in zip(_by_column(rows), best_sentences(rows, names), strict=True):
        lines.append(f"  {sentence}")
        if most is not None and len(rows) > most:
            continue
        pairs = [" - ".join(shown.get(row[side], row[side]) for side in ("model", "against")) for row in own]
        width = max(map(len, pairs))
        for pair, row in sorted(zip(pairs, own, strict=True), key=lambda item: -item[1]["difference"]):
            interval = f"95 % {row['low']:+.4f} to {row['high']:+.4f}"
            outcome = "significant" if row["p_holm"] < LEVEL else "not significant"
            p = format_p(row["p_holm"])
            lines.append(f"    {pair:<{width}}  {row['difference']:+.4f}  {interval}  {p}  {outcome}")
    return lines
