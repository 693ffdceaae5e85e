"""A study's table in the form of the paper's: figures x 100 with deviation over seeds, marks, and the paper's beside.

Rows of a block (the sizes of an encoder) have a table of their own. Up to `WIDE` data sets stand beside each other;
more stand below each other, a row a column, in a table for each metric, as in `paper_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raytriever.retrieval.evaluation_significance import BEST_RULE
from raytriever.retrieval.file_names import unique_names
from raytriever.retrieval.metric_words import metric_title
from raytriever.retrieval.paper_table import AVERAGE, WIDE, Figure, PaperTable
from raytriever.retrieval.study_marks import Block, best_of_block, marks_of_block, metrics_of
from raytriever.retrieval.study_results import StudyResults

# What is printed as it is and not as a share of one hundred, and in how many decimals.
PLAIN = {
    "steps_to_best": (0, "steps"),
    "mmd2": (4, "MMD²"),
    "query_positive_l2": (4, "l2"),
    "candidates_ratio": (2, "Candidates, x"),
}
Paper = Mapping[tuple[str, str, str], float]  # by row, data set and metric


def study_tables(results: StudyResults, blocks: Sequence[Block], paper: Paper, caption: str) -> list[PaperTable]:
    """The tables of a study.

    Args:
        results: what was measured.
        blocks: all rows.
        paper: the paper's figures, in the units of ours.
        caption: what the reader has to know of the measuring.
    """
    seeds = max(len(found) for found in results.found.values())
    tables = []
    for block in blocks:
        cells = [
            (dataset, metric)
            for dataset in results.datasets
            for metric in metrics_of(results, dataset)
            if any(results.has(row, dataset, metric) for row in block.rows)
        ]
        marks = marks_of_block(results, block)
        best = best_of_block(results, block, dict.fromkeys(metric for _, metric in cells if metric not in PLAIN))
        columns = {cell: _column(results, block, *cell, paper, marks, best.get(cell, ())) for cell in cells}
        told = _caption(block, caption, seeds, bool(paper), bool(marks))
        tables += _arranged(columns, block, told)
        if average := _averages(results, block, cells):
            _append(tables, average, cells)
    return tables


def title_of(metric: str) -> str:
    """A figure's name in print."""
    return {"steps_to_best": "Steps to best"}.get(metric) or (
        PLAIN[metric][1] if metric in PLAIN else metric_title(metric)
    )


def value_text(metric: str, value: float) -> str:
    """A figure in print."""
    if not np.isfinite(value):
        return "-"
    return f"{value:,.{PLAIN[metric][0]}f}" if metric in PLAIN else f"{100 * value:.2f}"


def _column(
    results: StudyResults,
    block: Block,
    dataset: str,
    metric: str,
    paper: Paper,
    marks: Mapping[tuple[str, str, str], str],
    best: Sequence[str],
) -> list[Figure]:
    """One figure a row."""
    there = {row: results.has(row, dataset, metric) for row in block.rows}
    shown = {row: value_text(metric, results.mean(row, dataset, metric)) if there[row] else "-" for row in block.rows}
    figures = []
    for row, text in shown.items():
        place = best.index(row) if row in best else None
        behind = _behind(results, row, dataset, metric, paper.get((row, dataset, metric))) if there[row] else ""
        figures.append(Figure(text, place, marks.get((row, dataset, metric), ""), behind))
    return figures


def _behind(results: StudyResults, row: str, dataset: str, metric: str, paper: float | None) -> str:
    deviation = results.deviation(row, dataset, metric)
    parts = [f"± {value_text(metric, deviation)}"] if np.isfinite(deviation) else []
    if paper is not None:
        parts.append(f"[{paper:,g}]" if metric in PLAIN else f"[{round(100 * paper, 2):g}]")
    return " ".join(parts)


def _arranged(columns: Mapping[tuple[str, str], list[Figure]], block: Block, caption: str) -> list[PaperTable]:
    datasets = list(dict.fromkeys(dataset for dataset, _ in columns))
    metrics = list(dict.fromkeys(metric for _, metric in columns))
    names = unique_names(list(block.rows.values()))
    if len(datasets) <= WIDE:
        groups = [(one, sum(dataset == one for dataset, _ in columns)) for one in datasets]
        rows = [(name, [column[place] for column in columns.values()]) for place, name in enumerate(names)]
        return [PaperTable(caption, groups, ["", *(title_of(metric) for _, metric in columns)], rows)]
    return [
        PaperTable(
            f"{title_of(metric)}. {caption}",
            [],
            unique_names(["Data set", *names]),
            [(one, columns[one, metric]) for one in datasets if (one, metric) in columns],
        )
        for metric in metrics
    ]


def _averages(results: StudyResults, block: Block, cells: Sequence[tuple[str, str]]) -> dict[str, list[Figure]] | None:
    """By metric a figure a row: the means over data sets; None where a row or a metric is not on all of them."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells))
    metrics = [metric for metric in dict.fromkeys(metric for _, metric in cells) if metric not in PLAIN]
    whole = all(results.has(row, one, metric) for row in block.rows for one in datasets for metric in metrics)
    if len(datasets) < 2 or not metrics or not whole:
        return None
    return {
        metric: [
            Figure(value_text(metric, float(np.mean([results.mean(row, one, metric) for one in datasets]))))
            for row in block.rows
        ]
        for metric in metrics
    }


def _append(tables: list[PaperTable], average: Mapping[str, list[Figure]], cells: Sequence[tuple[str, str]]) -> None:
    """Put the averages behind the data sets of the block that was arranged last."""
    if tables[-1].groups:
        last = tables[-1]
        last.groups.append((AVERAGE, len(average)))
        last.columns.extend(title_of(metric) for metric in average)
        for place, (_, figures) in enumerate(last.rows):
            figures.extend(column[place] for column in average.values())
        return
    metrics = list(dict.fromkeys(metric for _, metric in cells))
    for metric, table in zip(metrics, tables[-len(metrics) :], strict=True):
        if metric in average:
            table.rows.append((AVERAGE, average[metric]))


def _caption(block: Block, caption: str, seeds: int, paper: bool, marked: bool) -> str:
    told = f"{block.name}. {caption}" if block.name else caption
    told += " Metrics x 100." + (f" {BEST_RULE}" if len(block.rows) > 1 else "")
    if seeds > 1:
        told += f" Bold and underlined hold in every seed. Means and standard deviations over {seeds} seeds."
    if paper:
        told += " In brackets the paper's figure."
    if marked:
        signs = zip(block.baselines, "+◆", "-◇", strict=False)
        told += " " + "; ".join(
            f"{better} and {worse}: above and below {block.rows[one]}" for one, better, worse in signs
        )
        told += ", by the two-sided paired t-test over queries at p < 0.05 after Holm's correction over data sets" + (
            ", in all seeds." if seeds > 1 else "."
        )
    return told
