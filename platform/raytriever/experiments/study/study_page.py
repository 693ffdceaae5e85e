"""Tables and page of a study (`study.md`): results, significance marks, the paper's numbers, verdicts on claims.

Metrics are multiplied by 100 and have their standard deviation over seeds. p-values are corrected for all tests of a
metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from raytriever.core.terminal import markdown_table
from raytriever.evaluation.differences.differences_by_seed import SeededResults
from raytriever.evaluation.differences.system_significance import best_rule, marks_legend
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.result_tables import Cell, MetricTables, ReportTable, arrange, printed
from raytriever.evaluation.results import TestedPair
from raytriever.experiments.study.claims import Claim, Verdict
from raytriever.experiments.study.study_file import STEPS_TO_BEST
from raytriever.metrics.significance_tests import LEVEL

_RULE = (
    f"*Held*: every comparison agrees with the claim, by the t-test over queries and seeds (p < {LEVEL}). "
    "*Did not hold*: at least one comparison shows the opposite by the same rule. *Not tested*: a row has one seed. "
    "*Within noise*: anything else. If a claim has a margin, the difference itself is compared with the margin.\n"
)
Paper = Mapping[tuple[str, str, str], float]  # by row, data set and metric


def study_tables(
    results: SeededResults, pairs: Sequence[TestedPair], baselines: Sequence[str], paper: Paper, caption: str
) -> list[ReportTable]:
    """Return the tables of a study. The tests of all `pairs` of rows decide which values are bold, and which marks show
    differences from the one or two `baselines`."""
    means: dict[str, dict[str, dict[str, float | None]]] = {row: {} for row in results.rows}
    for row, dataset in results.cells:
        names = results.cells[row, dataset][0].metrics
        means[row][dataset] = {
            name: results.mean(row, dataset, name) for name in names if results.has(row, dataset, name)
        }
    tables = MetricTables(means, pairs, baselines)
    columns: dict[tuple[str | None, str], list[Cell]] = {
        (dataset, metric): [_cell(results, tables, row, dataset, metric, paper) for row in results.rows]
        for dataset in tables.datasets
        for metric in tables.metrics
        if any(metric in sets.get(dataset, {}) for sets in means.values())
    }
    averaged = [metric for metric in tables.metrics if metric != STEPS_TO_BEST]
    averages = {(None, metric): [tables.value(row, None, metric) for row in results.rows] for metric in averaged}
    if len(tables.datasets) > 1 and all(None not in values for values in averages.values()):
        columns |= {cell: [Cell(value_text(cell[1], value)) for value in values] for cell, values in averages.items()}
    text = _caption(results, baselines, caption, bool(paper), bool(tables.marks))
    return arrange(columns, results.rows, "", text, title_of)


def title_of(metric: str) -> str:
    """Return the printed name of a metric."""
    return "Steps to best" if metric == STEPS_TO_BEST else metric_title(metric)


def value_text(metric: str, value: float | None) -> str:
    """Return the printed value of a metric, or `-` if there is none."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:,.0f}" if metric == STEPS_TO_BEST else f"{100 * value:.2f}"


def _cell(results: SeededResults, tables: MetricTables, row: str, dataset: str, metric: str, paper: Paper) -> Cell:
    cell = replace(tables.cell(row, dataset, metric), text=value_text(metric, tables.value(row, dataset, metric)))
    if metric == STEPS_TO_BEST:  # a larger number of steps is not better, so there is no rank
        cell = replace(cell, rank=None)
    if not results.has(row, dataset, metric):
        return cell
    deviation, published = results.deviation(row, dataset, metric), paper.get((row, dataset, metric))
    parts = [f"± {value_text(metric, deviation)}"] if np.isfinite(deviation) else []
    if published is not None:
        parts.append(f"[{published:,g}]" if metric == STEPS_TO_BEST else f"[{round(100 * published, 2):g}]")
    return replace(cell, behind=" ".join(parts))


def _caption(results: SeededResults, baselines: Sequence[str], caption: str, paper: bool, marked: bool) -> str:
    seeds = max(len(cell) for cell in results.cells.values())
    text = f"{caption} Metrics x 100."
    if seeds > 1:
        text += f" {best_rule('t-test over queries and seeds')}" if len(results.rows) > 1 else ""
        text += f" Means and standard deviations over {seeds} seeds."
    else:
        text += " With one seed, no difference of a trained row is tested."
    if paper:
        text += " The result of the paper is in brackets."
    if marked:
        text += f" {marks_legend(baselines)}, by the same test."
    return text


def page_text(
    *,
    title: str,
    lines: Sequence[str],
    tables: Sequence[ReportTable],
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
        verdicts = [[claim.text, claim.source, f"**{verdict.word}**", verdict.because] for claim, verdict in claims]
        table = markdown_table([["claim", "source", "verdict", "values"], *verdicts])
        parts += ["## Claims, tested on the table\n", table, _RULE]
    if pairs:
        parts += ["## All pairs\n", "```\n" + "".join(f"{line}\n" for line in pairs) + "```\n"]
    parts += [f"![{caption}]({path})\n" for path, caption in figures.items()]
    for heading, rows in (("The paper's values", paper), ("Trainings", trainings)):
        if len(rows) > 1:
            parts += [f"## {heading}\n", markdown_table(rows)]
    return "\n".join(parts)
