"""Tables and page of a study (`study.md`): results, marks of significance, tables of the paper, verdicts on claims.

Metrics are printed times 100, with their deviation over seeds. p-values are corrected over all pairs and data sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from raytriever.evaluation.differences.seeds import SeededResults
from raytriever.evaluation.differences.significance import best_models, best_rule, collect_marks, marks_legend
from raytriever.evaluation.metric_tables import arrange
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.results import TestedPair
from raytriever.evaluation.table import Cell, Table, printed
from raytriever.metrics.significance import LEVEL
from raytriever.studies.claims import Claim, Verdict
from raytriever.studies.definition import STEPS_TO_BEST
from raytriever.terminal import markdown_table

_RULE = (
    f"*Held*: every comparison agrees with the claim, by the t-test over queries and seeds (p < {LEVEL}). "
    "*Did not hold*: at least one comparison shows the opposite by the same rule. *Not tested*: a row has one seed. "
    "*Within noise*: anything else. Where a margin is given, the difference itself is compared with it.\n"
)
Paper = Mapping[tuple[str, str, str], float]  # by row, data set and metric


def metrics_of(results: SeededResults, dataset: str) -> list[str]:
    """Return the names of all metrics that any row has on a data set, in their order."""
    rows = [one for (_, name), seeds in results.cells.items() if name == dataset for one in seeds]
    return list(dict.fromkeys(metric for one in rows for metric in one.metrics))


def study_tables(
    results: SeededResults, pairs: Sequence[TestedPair], baselines: Sequence[str], paper: Paper, caption: str
) -> list[Table]:
    """Return the tables of a study.

    Args:
        pairs: tests of every pair of rows; the marks and the bold values follow from them.
        baselines: at most two rows that the others are compared with.
    """
    cells = [(dataset, metric) for dataset in results.datasets for metric in metrics_of(results, dataset)]
    marks = collect_marks(pairs, baselines)
    means: dict[str, dict[str, dict[str, float | None]]] = {row: {} for row in results.rows}
    for row, (dataset, metric) in itertools.product(results.rows, cells):
        if results.has(row, dataset, metric):
            means[row].setdefault(dataset, {})[metric] = results.mean(row, dataset, metric)
    best = {cell: rows for cell, rows in best_models(pairs, means).items() if cell[1] != STEPS_TO_BEST}
    columns: dict[tuple[str | None, str], list[Cell]] = {
        cell: _column(results, *cell, paper, marks, best.get(cell, ())) for cell in cells
    }
    columns |= _averages(results, cells)
    text = _caption(results, baselines, caption, bool(paper), bool(marks))
    return arrange(columns, results.rows, "", text, title_of)


def title_of(metric: str) -> str:
    """Return the printed name of a metric."""
    return "Steps to best" if metric == STEPS_TO_BEST else metric_title(metric)


def value_text(metric: str, value: float) -> str:
    """Return the printed value of a metric; `-` if it is not finite."""
    if not np.isfinite(value):
        return "-"
    return f"{value:,.0f}" if metric == STEPS_TO_BEST else f"{100 * value:.2f}"


def _column(
    results: SeededResults,
    dataset: str,
    metric: str,
    paper: Paper,
    marks: Mapping[tuple[str | None, str, str], str],
    best: Sequence[str],
) -> list[Cell]:
    is_measured = {row: results.has(row, dataset, metric) for row in results.rows}
    texts = {
        row: value_text(metric, results.mean(row, dataset, metric)) if is_measured[row] else "-" for row in results.rows
    }
    figures = []
    for row, text in texts.items():
        rank = best.index(row) if row in best else None
        suffix = ""
        if is_measured[row]:
            suffix = _suffix(results, row, dataset, metric, paper.get((row, dataset, metric)))
        mark = marks.get((dataset, row, metric), "")
        figures.append(Cell(text, mark=mark, rank=rank, behind=suffix))
    return figures


def _suffix(results: SeededResults, row: str, dataset: str, metric: str, paper: float | None) -> str:
    """Return deviation and result of the paper, printed after a value."""
    deviation = results.deviation(row, dataset, metric)
    parts = [f"± {value_text(metric, deviation)}"] if np.isfinite(deviation) else []
    if paper is not None:
        parts.append(f"[{paper:,g}]" if metric == STEPS_TO_BEST else f"[{round(100 * paper, 2):g}]")
    return " ".join(parts)


def _averages(results: SeededResults, cells: Sequence[tuple[str, str]]) -> dict[tuple[str | None, str], list[Cell]]:
    """Return the mean of each row over the data sets; nothing if a row or metric is missing on one of them."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells))
    metrics = [metric for metric in dict.fromkeys(metric for _, metric in cells) if metric != STEPS_TO_BEST]
    is_complete = all(results.has(row, one, metric) for row in results.rows for one in datasets for metric in metrics)
    if len(datasets) < 2 or not is_complete:
        return {}
    return {
        (None, metric): [
            Cell(value_text(metric, float(np.mean([results.mean(row, one, metric) for one in datasets]))))
            for row in results.rows
        ]
        for metric in metrics
    }


def _caption(results: SeededResults, baselines: Sequence[str], caption: str, paper: bool, marked: bool) -> str:
    seeds = max(len(cell) for cell in results.cells.values())
    text = f"{caption} Metrics x 100."
    if seeds > 1:
        text += f" {best_rule('t-test over queries and seeds')}" if len(results.rows) > 1 else ""
        text += f" Means and standard deviations over {seeds} seeds."
    else:
        text += " One seed: no difference of a trained row is tested."
    if paper:
        text += " The result of the paper is in brackets."
    if marked:
        text += f" {marks_legend(baselines)}, by the same test."
    return text


def page_text(
    *,
    title: str,
    lines: Sequence[str],
    tables: Sequence[Table],
    claims: Sequence[tuple[Claim, Verdict]],
    trainings: Sequence[Sequence[str]],
    paper: Sequence[Sequence[str]],
    figures: Mapping[str, str],
    pairs: Sequence[str] = (),
) -> str:
    """Return the page in Markdown.

    Args:
        lines: source, seeds and data of the study.
        trainings: row of titles, and one row for each training.
        paper: published results: a row of titles, then the other rows.
        figures: captions by path, relative to the page.
        pairs: lines about all pairs of rows.
    """
    parts = [f"# {title}\n", "".join(f"{line}  \n" for line in lines), printed(tables)]
    if claims:
        verdicts = [[claim.text, claim.source, f"**{one.word}**", one.because] for claim, one in claims]
        table = markdown_table([["claim", "source", "verdict", "values"], *verdicts])
        parts += ["## Claims, tested on the table\n", table, _RULE]
    if pairs:
        parts += ["## All pairs\n", "```\n" + "".join(f"{line}\n" for line in pairs) + "```\n"]
    parts += [f"![{caption}]({path})\n" for path, caption in figures.items()]
    for heading, rows in (("The paper's figures", paper), ("Trainings", trainings)):
        if len(rows) > 1:
            parts += [f"## {heading}\n", markdown_table(rows)]
    return "\n".join(parts)
