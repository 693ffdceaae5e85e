"""Tables of metrics: on a terminal, in print as papers have them, and on a page. All show the same tests.

In print up to `WIDE` data sets are columns, each with all metrics, and each model is a row (Optimizing What Matters,
Table 1). More data sets are rows, and each model is a column, in one table per metric (Training dense retrievers with
multiple positive passages, Table 3). Averages are means over the data sets, and numbers are multiplied by 100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from raytriever.evaluation.differences.significance import (
    CORRECTED,
    MEAN,
    best_models,
    best_rule,
    collect_marks,
    marks_legend,
    pairs_with,
)
from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.results import TestedPair, datasets_of, metrics_of
from raytriever.evaluation.table import Cell, ReportTable
from raytriever.metrics.significance import LEVEL

WIDE, AVERAGE, NOTHING = 4, "Average", "–"
Values = Mapping[str, Mapping[str, Mapping[str, float | None]]]  # by model, data set and metric
Rows = list[list[str | Cell]]


def number_cell(value: float | None, *, signed: bool = False) -> Cell:
    """Return a number with four decimals, by which it sorts; a dash for None."""
    if value is None or value != value:
        return Cell(NOTHING)
    return Cell(f"{value:+.4f}" if signed else f"{value:.4f}", float(value))


def p_cell(p: float) -> Cell:
    """Return a p-value with four decimals, by which it sorts."""
    return Cell("<0.0001" if p < 1e-4 else f"{p:.4f}", p)


def significance_cell(p: float) -> Cell:
    """Return `yes` or `no` with the p-value after the correction, by which it sorts."""
    shown = "<0.001" if p < 1e-3 else f"{p:.3f}"
    return Cell(f"{'yes' if p < LEVEL else 'no'}, p {shown}", p)


def metrics_table(rows: Mapping[str, Mapping[str, float | None]]) -> ReportTable:
    """Return a table of the metrics of systems, with four decimals and without marks."""
    metrics = list(dict.fromkeys(name for values in rows.values() for name in values))
    cells: Rows = [[system, *(number_cell(values.get(name)) for name in metrics)] for system, values in rows.items()]
    return ReportTable("", ["", *map(metric_title, metrics)], cells)


class MetricTables:
    """Tables of the metrics of models.

    Marks, bold numbers and hints follow from the tests of all pairs; the first baselines have marks of their own.
    """

    def __init__(self, models: Values, pairs: Sequence[TestedPair], baselines: Sequence[str]) -> None:
        self.models, self.pairs, self.baselines = models, pairs, baselines
        self.datasets, self.metrics = datasets_of(models), metrics_of(models)
        self.marks, self.best = collect_marks(pairs, baselines), best_models(pairs, models)

    def value(self, model: str, dataset: str | None, metric: str) -> float | None:
        """Return a metric of a model on a data set, or the mean over all, which needs all."""
        if dataset is not None:
            return self.models[model].get(dataset, {}).get(metric)
        values = [self.value(model, name, metric) for name in self.datasets]
        whole = [value for value in values if value is not None]
        return sum(whole) / len(whole) if whole and len(whole) == len(values) else None

    def cell(self, model: str, dataset: str | None, metric: str, percent: bool = False) -> Cell:
        """Return the number of a model with its mark, hint and rank: four decimals, or two times 100."""
        value, key = self.value(model, dataset, metric), (dataset, model, metric)
        cell = number_cell(value)
        if percent and value is not None:
            cell = replace(cell, text=f"{100 * value:.2f}")
        ahead = list(self.best.get((dataset, metric), ()))
        rank = ahead.index(model) if model in ahead else None
        return replace(cell, mark=self.marks.get(key, ""), hint=self._hints.get(key, ""), rank=rank)

    def of_dataset(self, dataset: str) -> ReportTable:
        """Return the table of one data set on a terminal."""
        rows: Rows = [[model, *(self.cell(model, dataset, metric) for metric in self.metrics)] for model in self.models]
        return ReportTable(dataset, ["", *map(metric_title, self.metrics)], rows)

    def in_print(self, splits: Mapping[str, str]) -> list[ReportTable]:
        """Return the tables in print: one, or one for each metric if there are more than `WIDE` data sets."""
        averaged: list[str | None] = [*self.datasets, None] if len(self.datasets) > 1 else [*self.datasets]
        columns = {
            (dataset, metric): [self.cell(model, dataset, metric, percent=True) for model in self.models]
            for dataset in averaged
            for metric in self.metrics
        }
        caption = f"Split {split_text(splits)}, x 100."
        if len(self.models) > 1:
            caption += f" {best_rule('paired t-test')}"
        if self.marks:
            caption += f" {marks_legend(self.baselines)}."
        return arrange(columns, list(self.models), "Model", caption, metric_title)

    def on_page(self) -> list[ReportTable]:
        """Return one table per metric (models by data sets, with the mean), one of all metrics and one of all tests.

        For one data set the table of all metrics is enough: the tables per metric are left out.
        """
        tables, rows = list[ReportTable](), Rows()
        if len(self.datasets) > 1:
            for metric in self.metrics:
                rows = [
                    [model, *(self.cell(model, name, metric) for name in (*self.datasets, None))]
                    for model in self.models
                ]
                columns = unique_names(["model", *self.datasets, "mean"])
                tables.append(ReportTable(metric_title(metric), columns, rows, self._note, "Metric"))
        rows = [
            [dataset, model, *(self.cell(model, dataset, metric) for metric in self.metrics)]
            for dataset in self.datasets
            for model in self.models
            if dataset in self.models[model]
        ]
        columns = unique_names(["data set", "model", *map(metric_title, self.metrics)])
        return [*tables, ReportTable("All metrics", columns, rows, self._note), *pairs_table(self.pairs)]

    @cached_property
    def _hints(self) -> dict[tuple[str | None, str, str], str]:
        hints: dict[tuple[str | None, str, str], str] = {}
        for row in (row for baseline in self.baselines for row in pairs_with(self.pairs, baseline)):
            key = (row.dataset, row.model, row.metric)
            difference = number_cell(row.difference, signed=True).text
            hint = f"{difference} against {row.against}, p after Holm {p_cell(row.p_holm).text}"
            hints[key] = "; ".join(filter(None, [hints.get(key), hint]))
        return hints

    @property
    def _note(self) -> str:
        notes = []
        if self.marks:
            notes.append(f"{marks_legend(self.baselines)}. Two-sided paired t-test over queries, {CORRECTED}.")
        if len(self.models) > 1:
            notes.append(
                f"Bold: significantly above every other model of its column, {CORRECTED}. A column without bold has no "
                "significant best."
            )
        return " ".join(notes)


def arrange(
    columns: Mapping[tuple[str | None, str], Sequence[Cell]],
    rows: Sequence[str],
    first: str,
    caption: str,
    title: Callable[[str], str],
) -> list[ReportTable]:
    """Return one table in print, or one for each metric if there are more than `WIDE` data sets.

    `columns` have a number for each row, by data set and metric. The data set None is the mean over all.
    """
    datasets = list(dict.fromkeys(one for one, _ in columns))
    names = dict(zip(datasets, unique_names([AVERAGE if one is None else one for one in datasets]), strict=True))
    if sum(one is not None for one in datasets) <= WIDE:
        spans = [(names[one], sum(dataset == one for dataset, _ in columns)) for one in datasets]
        cells: Rows = [[row, *(column[index] for column in columns.values())] for index, row in enumerate(rows)]
        return [ReportTable(caption, [first, *(title(metric) for _, metric in columns)], cells, spans=spans)]
    return [
        ReportTable(
            f"{title(metric)}. {caption}",
            unique_names(["Data set", *rows]),
            [[names[one], *columns[one, metric]] for one in datasets if (one, metric) in columns],
        )
        for metric in dict.fromkeys(metric for _, metric in columns)
    ]


def split_text(splits: Mapping[str, str]) -> str:
    """Name the split of most data sets, then that of each other one: `test (MSMARCO: dev)`."""
    usual = Counter(splits.values()).most_common(1)[0][0]
    others = ", ".join(f"{name}: {split}" for name, split in splits.items() if split != usual)
    return f"{usual} ({others})" if others else usual


def pairs_table(pairs: Sequence[TestedPair]) -> list[ReportTable]:
    """Return the table of tests on a page. The outcome comes first: a narrow screen shows the first columns only."""
    if not pairs:
        return []
    columns = ["data set", "metric", "model", "against", "significant", "difference", "from", "to", "p", "effect"]
    rows: Rows = [
        [
            row.dataset or MEAN,
            metric_title(row.metric),
            row.model,
            row.against,
            significance_cell(row.p_holm),
            *(number_cell(value, signed=True) for value in (row.difference, row.low, row.high)),
            p_cell(row.p),
            number_cell(row.effect, signed=True),
        ]
        for row in pairs
    ]
    note = (
        f"{_highest(pairs)}Significant: p, after Holm's correction over the pairs and data sets of a metric, is below "
        f"{LEVEL}. From and to: the 95 % interval of the difference. It and the last p are without the correction. "
        "Effect: the mean of the differences, divided by their standard deviation."
    )
    return [ReportTable("Significance", columns, rows, note)]


def _highest(pairs: Sequence[TestedPair]) -> str:
    if len({row.dataset for row in pairs}) > 1:
        return ""
    metrics: dict[str, list[str]] = {}
    for metric in dict.fromkeys(row.metric for row in pairs):
        wins = Counter(row.model for row in pairs if row.metric == metric)
        metrics.setdefault(wins.most_common(1)[0][0], []).append(metric_title(metric))
    return f"Highest mean: {'; '.join(f'{model} in ' + ', '.join(own) for model, own in metrics.items())}. "
