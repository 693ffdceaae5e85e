"""Results as the papers print them: the best bold, the second underlined, marks of significance raised.

Up to `WIDE` data sets stand beside each other, each with all metrics, a model a row (*Optimizing What Matters*,
Table 1; *Training dense retrievers with multiple positive passages*, Table 2). More stand below each other, a model a
column, in a table for each metric (Table 3 there). Averages are means over the data sets. Figures are times 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raytriever.retrieval.metric_words import metric_title

WIDE = 4
AVERAGE = "Average"
Rows = Mapping[str, Mapping[str, Mapping[str, float]]]
Marks = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True)
class Figure:
    """One figure of a table: its text, its place among its fellows (0 best, 1 second, else None), its mark, and what
    stands plain behind it."""

    text: str
    place: int | None = None
    mark: str = ""
    behind: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table before it is written in any language.

    Args:
        caption: what it holds.
        groups: titles over columns, each with the number of columns; none where one line of titles suffices.
        columns: the titles, the first over the rows' names.
        rows: a name and a figure for each further column.
    """

    caption: str
    groups: list[tuple[str, int]]
    columns: list[str]
    rows: list[tuple[str, list[Figure]]]


def paper_tables(models: Rows, marks: Marks, split: str, baselines: Sequence[str]) -> list[PaperTable]:
    """The tables of an evaluation: one, or one for each metric where there are more than `WIDE` data sets.

    Args:
        models: metrics by model and data set; all have the same.
        marks: by data set, model and metric.
        split: that was measured.
        baselines: what the marks compare with.
    """
    first = next(iter(models.values()))
    datasets = list(first)
    metrics = list(first[datasets[0]])
    caption = _caption(split, baselines if any(marks.values()) else ())
    averaged = [*datasets, AVERAGE] if len(datasets) > 1 else datasets
    if len(datasets) <= WIDE:
        fellows = {(one, metric): _column(models, one, metric, marks) for one in averaged for metric in metrics}
        rows = [(model, [fellows[key][place] for key in fellows]) for place, model in enumerate(models)]
        titles = [metric_title(metric) for _, metric in fellows]
        return [PaperTable(caption, [(one, len(metrics)) for one in averaged], ["Model", *titles], rows)]
    return [
        PaperTable(
            f"{metric_title(metric)}. {caption}",
            [],
            ["Data set", *models],
            [(one, _column(models, one, metric, marks)) for one in averaged],
        )
        for metric in metrics
    ]


def _column(models: Rows, dataset: str, metric: str, marks: Marks) -> list[Figure]:
    """One figure a model, of one metric on one data set."""
    values = [
        float(np.mean([row[metric] for row in rows.values()])) if dataset == AVERAGE else rows[dataset][metric]
        for rows in models.values()
    ]
    shown = [f"{100 * value:.2f}" for value in values]
    # Figures that print alike rank alike.
    better = sorted({float(text) for text in shown if text != "nan"}, reverse=True)
    # Of two, the worse one needs no sign.
    told = 0 if len(better) < 2 else 1 if len(models) == 2 else 2
    return [
        Figure(
            text,
            better.index(float(text)) if text != "nan" and float(text) in better[:told] else None,
            marks.get((dataset, model, metric), ""),
        )
        for text, model in zip(shown, models, strict=True)
    ]


def _caption(split: str, baselines: Sequence[str]) -> str:
    told = f"Split {split}, x 100. Best bold, second underlined."
    for baseline, better, worse in zip(baselines, "+◆", "-◇", strict=False):
        told += f" {better} and {worse}: significantly above and below {baseline}."
    return told + (" Two-sided paired t-test, p < 0.05 after Holm's correction over data sets." if baselines else "")
