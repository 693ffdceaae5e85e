"""Tables of a page: models by data sets for each metric, all metrics, significance, AUC and thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raytriever.evaluation.decision_tables import (
    Cells,
    calibration_notes,
    confidence_cells,
    form_cells,
    form_note,
    threshold_cells,
)
from raytriever.evaluation.differences.rows import TestedPair
from raytriever.evaluation.differences.significance import (
    CORRECTED,
    MEAN,
    Best,
    best_models,
    collect_marks,
    marks_legend,
    pairs_with,
)
from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import metric_title
from raytriever.metrics.significance import LEVEL
from raytriever.report.page import Cell, HtmlTable

Values = Mapping[str, Mapping[str, Mapping[str, float | None]]]  # by model, data set and metric
Rows = Sequence[Mapping[str, Any]]
# Cells of a row by the titles of their columns.
Columns = Mapping[str, Callable[[Mapping[str, Any]], str | Cell]]


def metrics_of(models: Values) -> list[str]:
    """Return the metrics that any model has, in order of appearance."""
    return list(dict.fromkeys(name for sets in models.values() for values in sets.values() for name in values))


def datasets_of(models: Values) -> list[str]:
    """Return the data sets on which any model was measured, in order of appearance."""
    return list(dict.fromkeys(name for sets in models.values() for name in sets))


@dataclass(frozen=True)
class _Tests:
    """Results of the tests of all pairs: mark and tooltip of each figure, the best ones, and the note on them."""

    marks: Mapping[tuple[str | None, str, str], str]
    hints: Mapping[tuple[str | None, str, str], str]
    best: Best
    note: str


def result_tables(models: Values, pairs: Sequence[TestedPair], baselines: Sequence[str]) -> list[HtmlTable]:
    """Return one table per metric (models by data sets, with the mean), one of all metrics and one of all tests.

    For one data set the table of all metrics is enough: the tables per metric are left out.
    """
    tests = _tests(models, pairs, baselines)
    tables = []
    if len(datasets_of(models)) > 1:
        tables = [_metric_table(models, metric, tests) for metric in metrics_of(models)]
    return [*tables, _whole_table(models, tests), *_pairs_table(pairs)]


def _tests(models: Values, pairs: Sequence[TestedPair], baselines: Sequence[str]) -> _Tests:
    hints: dict[tuple[str | None, str, str], str] = {}
    for row in [row for baseline in baselines for row in pairs_with(pairs, baseline)]:
        key = (row["dataset"], row["model"], row["metric"])
        difference, p = figure_cell(row["difference"], signed=True).text, probability_cell(row["p_holm"]).text
        hint = f"{difference} against {row['against']}, p after Holm {p}"
        hints[key] = "; ".join(filter(None, [hints.get(key), hint]))
    marks, notes = collect_marks(pairs, baselines), list[str]()
    if marks:
        notes.append(f"{marks_legend(baselines)}. Two-sided paired t-test over queries, {CORRECTED}.")
    if len(models) > 1:
        notes.append(
            f"Bold: significantly above every other model of its column, {CORRECTED}. A column without bold has no "
            "significant best."
        )
    return _Tests(marks, hints, best_models(pairs, models), " ".join(notes))


def table_of(title: str, rows: Rows, columns: Columns, note: str) -> list[HtmlTable]:
    """Return a table whose columns are functions of a row, by their titles; no table if there are no rows."""
    if not rows:
        return []
    return [HtmlTable(title, list(columns), [[cell(row) for cell in columns.values()] for row in rows], note)]


def auc_table(rows: Rows) -> list[HtmlTable]:
    """Return a table of the pooled AUC with its interval, from rows of `evaluation.measurements.auc_rows`."""
    columns: Columns = {
        "data set": lambda row: str(row["dataset"]),
        "model": lambda row: str(row["model"]),
        "AUC": lambda row: figure_cell(row["auc"]),
        "from": lambda row: figure_cell(row["low"]),
        "to": lambda row: figure_cell(row["high"]),
        "misordered queries": lambda row: Cell(f"{row['misordered_queries']:,}", float(row["misordered_queries"])),
        "note": lambda row: str(row["note"] or ""),
    }
    note = "95 % intervals of the AUC over the pairs of all queries. The scores of one query are one cluster."
    return table_of("AUC", rows, columns, note)


def threshold_table(rows: Rows) -> list[HtmlTable]:
    """Return a table of thresholds chosen on one split and checked on another, from rows of `calibration_rows`."""
    on = " or ".join(dict.fromkeys(str(row["chosen_on"]) for row in rows))
    note = (
        "A question is answered, with its best document, if its confidence is at or above the threshold; a pair "
        f"counts as relevant if its score is. Each threshold was chosen on {on} for the wanted value and checked on "
        "the judged split. Queries answered: of those with an answer in the corpus. Top answer relevant: of the shown. "
        "Brackets contain 95 % intervals by Wilson. The pairs of one query are alike, so they count as fewer "
        f"independent pairs. Calibration error: the share of relevant pairs by score on {on}, used as a probability, "
        "against the judged split; 0 is best, and an interval from 0 on says that they may be exactly right."
    )
    return _of_cells("Thresholds", threshold_cells(rows, 4), " ".join([note, *calibration_notes(rows)]))


def confidence_table(rows: Rows) -> list[HtmlTable]:
    """Return a table of confidences, from rows of `decision.confidence_rows`."""
    note = (
        "Area under the risk-coverage curve: the mean share of wrong answers among those shown, over all thresholds; "
        "lower is better. Brackets contain 95 % intervals over resampled questions."
    )
    return _of_cells("Confidences", confidence_cells(rows), note)


def _of_cells(title: str, cells: Cells, note: str) -> list[HtmlTable]:
    if not cells:
        return []
    numeric = {name for line in cells for name, (_, number) in line.items() if number is not None}
    rows: list[list[str | Cell]] = [
        [Cell(text, number) if name in numeric else text for name, (text, number) in line.items()] for line in cells
    ]
    return [HtmlTable(title, list(cells[0]), rows, note)]


def form_tables(rows: Rows) -> list[HtmlTable]:
    """Return a table of stored forms, with quality and threshold against bytes, from rows of `form_rows`."""
    return _of_cells("Stored forms", form_cells(rows), form_note(rows))


def _metric_table(models: Values, metric: str, tests: _Tests) -> HtmlTable:
    datasets = datasets_of(models)
    columns = [_column(models, dataset, metric, tests) for dataset in datasets]
    means: dict[str, float | None] = {}
    for model in models:
        values = [column[model].value for column in columns]
        whole = [value for value in values if value is not None]
        means[model] = sum(whole) / len(whole) if len(whole) == len(values) else None
    columns.append(_cells(means, None, metric, tests))
    rows: list[list[str | Cell]] = [[model, *(column[model] for column in columns)] for model in models]
    return HtmlTable(metric_title(metric), unique_names(["model", *datasets, "mean"]), rows, tests.note, "Metric")


def _whole_table(models: Values, tests: _Tests) -> HtmlTable:
    metrics = metrics_of(models)
    rows: list[list[str | Cell]] = []
    for dataset in datasets_of(models):
        columns = [_column(models, dataset, metric, tests) for metric in metrics]
        measured = [model for model in models if dataset in models[model]]
        rows += [[dataset, model, *(column[model] for column in columns)] for model in measured]
    titles = ["data set", "model", *map(metric_title, metrics)]
    return HtmlTable("All metrics", unique_names(titles), rows, tests.note)


def _column(models: Values, dataset: str, metric: str, tests: _Tests) -> dict[str, Cell]:
    """Return the cells of one metric on one data set, by model."""
    return _cells({model: sets.get(dataset, {}).get(metric) for model, sets in models.items()}, dataset, metric, tests)


def _cells(values: Mapping[str, float | None], dataset: str | None, metric: str, tests: _Tests) -> dict[str, Cell]:
    best = tests.best.get((dataset, metric), ())[:1]
    cells = {}
    for model, value in values.items():
        key, cell = (dataset, model, metric), figure_cell(value)
        hint = "; ".join(filter(None, [cell.hint, tests.hints.get(key)]))
        cells[model] = replace(cell, mark=tests.marks.get(key, ""), hint=hint, best=model in best)
    return cells


def _pairs_table(rows: Sequence[TestedPair]) -> list[HtmlTable]:
    """Return the table of tests. The outcome comes first: a narrow screen shows the first columns only."""
    columns: Columns = {
        "data set": lambda row: str(row["dataset"] or MEAN),
        "metric": lambda row: metric_title(str(row["metric"])),
        "model": lambda row: str(row["model"]),
        "against": lambda row: str(row["against"]),
        "significant": lambda row: significance_cell(row["p_holm"]),
        "difference": lambda row: figure_cell(row["difference"], signed=True),
        "from": lambda row: figure_cell(row["low"], signed=True),
        "to": lambda row: figure_cell(row["high"], signed=True),
        "p": lambda row: probability_cell(row["p"]),
        "effect": lambda row: figure_cell(row.get("effect"), signed=True),
    }
    note = (
        f"{_highest(rows)}Significant: p, after Holm's correction over the pairs and data sets of a metric, is below "
        f"{LEVEL}. From and to: the 95 % interval of the difference. It and the last p are without the correction. "
        "Effect: the mean of the differences, divided by their standard deviation."
    )
    return table_of("Significance", rows, columns, note)


def significance_cell(p: float) -> Cell:
    """Return `yes` or `no` with the p-value after the correction, by which it sorts."""
    shown = "<0.001" if p < 1e-3 else f"{p:.3f}"
    return Cell(f"{'yes' if p < LEVEL else 'no'}, p {shown}", p)


def _highest(rows: Sequence[TestedPair]) -> str:
    """Return the model with the highest mean of each metric, for one data set; empty for several."""
    if len({row["dataset"] for row in rows}) > 1:
        return ""
    metrics: dict[str, list[str]] = {}
    for metric in dict.fromkeys(row["metric"] for row in rows):
        wins = Counter(row["model"] for row in rows if row["metric"] == metric)
        metrics.setdefault(wins.most_common(1)[0][0], []).append(metric_title(metric))
    return f"Highest mean: {'; '.join(f'{model} in ' + ', '.join(own) for model, own in metrics.items())}. "


def figure_cell(value: float | None, *, signed: bool = False) -> Cell:
    """Return a figure with four decimals, that sorts by its value; a dash for None."""
    if value is None:
        return Cell("–")
    return Cell(f"{value:+.4f}" if signed else f"{value:.4f}", float(value))


def probability_cell(value: float) -> Cell:
    """Return a p-value with four decimals, that sorts by its value."""
    return Cell("<0.0001" if value < 1e-4 else f"{value:.4f}", value)
