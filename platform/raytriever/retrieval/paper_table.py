"""Results as the papers print them: the best bold, the second underlined where they are more than noise, marks of
significance raised.

Up to `WIDE` data sets stand beside each other, each with all metrics, a model a row (*Optimizing What Matters*,
Table 1; *Training dense retrievers with multiple positive passages*, Table 2). More stand below each other, a model a
column, in a table for each metric (Table 3 there). Averages are means over the data sets. Figures are times 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raytriever.retrieval.evaluation_significance import BEST_RULE, Best
from raytriever.retrieval.file_names import unique_names
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


def paper_tables(models: Rows, marks: Marks, split: str, baselines: Sequence[str], best: Best) -> list[PaperTable]:
    """The tables of an evaluation: one, or one for each metric where there are more than `WIDE` data sets.

    Args:
        models: metrics by model and data set; all have the same.
        marks: by data set, model and metric.
        split: that was measured.
        baselines: what the marks compare with.
        best: the models that are bold and underlined, see `evaluation_significance.best_models`.
    """
    first = next(iter(models.values()))
    datasets = list(first)
    metrics = list(first[datasets[0]])
    caption = _caption(split, baselines if any(marks.values()) else (), len(models))
    averaged: list[str | None] = [*datasets, None] if len(datasets) > 1 else [*datasets]
    names = dict(zip(averaged, unique_names([one or AVERAGE for one in averaged]), strict=True))
    if len(datasets) <= WIDE:
        fellows = {(one, metric): _column(models, one, metric, marks, best) for one in averaged for metric in metrics}
        rows = [(model, [fellows[key][place] for key in fellows]) for place, model in enumerate(models)]
        titles = [metric_title(metric) for _, metric in fellows]
        return [PaperTable(caption, [(names[one], len(metrics)) for one in averaged], ["Model", *titles], rows)]
    return [
        PaperTable(
            f"{metric_title(metric)}. {caption}",
            [],
            unique_names(["Data set", *models]),
            [(names[one], _column(models, one, metric, marks, best)) for one in averaged],
        )
        for metric in metrics
    ]


def _column(models: Rows, dataset: str | None, metric: str, marks: Marks, best: Best) -> list[Figure]:
    """One figure a model, of one metric on one data set, or of its mean over all of them."""
    ahead = list(best.get((dataset, metric), ()))
    figures = []
    for model, rows in models.items():
        value = float(np.mean([row[metric] for row in rows.values()])) if dataset is None else rows[dataset][metric]
        mark = marks.get((dataset, model, metric), "") if dataset is not None else ""
        figures.append(Figure(f"{100 * value:.2f}", ahead.index(model) if model in ahead else None, mark))
    return figures


def _caption(split: str, baselines: Sequence[str], models: int) -> str:
    told = f"Split {split}, x 100." + (f" {BEST_RULE}" if models > 1 else "")
    for baseline, better, worse in zip(baselines, "+◆", "-◇", strict=False):
        told += f" {better} and {worse}: significantly above and below {baseline}."
    return told
