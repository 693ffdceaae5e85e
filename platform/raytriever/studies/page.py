"""Tables and page of a study (`study.md`): results, marks of significance, tables of the paper, verdicts on claims.

Metrics are printed times 100, with their deviation over seeds. Each block of rows (for example one size of encoder)
has its own table, in the form of `evaluation.tables`, and p-values are corrected over its pairs and data sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raytriever.evaluation.differences.rows import TestedPair
from raytriever.evaluation.differences.seeds import SeededResults, seeded_pair_rows
from raytriever.evaluation.differences.significance import best_models, best_rule, collect_marks, marks_legend
from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.tables import Figure, PaperTable, arrange, markdown
from raytriever.metrics.significance import LEVEL
from raytriever.studies.claims import Claim, Verdict
from raytriever.terminal import markdown_table

# Metrics that are not printed times 100: their decimals and titles.
PLAIN = {
    "steps_to_best": (0, "steps"),
    "mmd2": (4, "MMD²"),
    "query_positive_l2": (4, "l2"),
    "candidates_ratio": (2, "Candidates, x"),
    "aurc": (4, "AURC by the score, lower is better"),
    "aurc_best": (4, "AURC by the best confidence, lower is better"),
    "combined_gain": (4, "AURC by the score minus AURC by `combined`"),
    "shown_removed": (3, "Share shown, answer removed, lower is better"),
    "shown_foreign": (3, "Share shown, of another domain, lower is better"),
    "shown_hard": (3, "Share shown, entity replaced, lower is better"),
    "transfer_loss": (4, "F1 by the score lost at thresholds of other data sets, lower is better"),
}
_TITLES = {
    "steps_to_best": "Steps to best",
    "f1": "F1 at the threshold of all data sets",
    "answered": "Answered rightly, of those with an answer",
}
_RULE = (
    f"*Held*: every comparison agrees with the claim, by the t-test over queries and seeds (p < {LEVEL}). "
    "*Did not hold*: at least one comparison shows the opposite by the same rule. *Not tested*: a row has one seed. "
    "*Within noise*: anything else. Where a margin is given, the difference itself is compared with it.\n"
)
Paper = Mapping[tuple[str, str, str], float]  # by row, data set and metric


@dataclass(frozen=True)
class Block:
    """Rows that are compared with each other.

    Args:
        name: title printed above them; empty if the study has one block.
        rows: printed names of the rows, by their labels in the results.
        baselines: labels of at most two rows that the others are compared with.
    """

    name: str
    rows: Mapping[str, str]
    baselines: Sequence[str]


def pairs_of_block(results: SeededResults, block: Block) -> list[TestedPair]:
    """Test every pair of rows of a block; the marks and the bold values of its table follow from these tests."""
    return seeded_pair_rows(results, lambda row, other: {row, other} <= block.rows.keys())


def metrics_of(results: SeededResults, dataset: str) -> list[str]:
    """Return the names of all metrics that any row has on a data set, in their order."""
    rows = [one for (_, name), seeds in results.cells.items() if name == dataset for one in seeds]
    return list(dict.fromkeys(metric for one in rows for metric in one.metrics))


def study_tables(results: SeededResults, blocks: Sequence[Block], paper: Paper, caption: str) -> list[PaperTable]:
    """Return the tables of a study."""
    seeds = max(len(cell) for cell in results.cells.values())
    tables = []
    for block in blocks:
        cells = [
            (dataset, metric)
            for dataset in results.datasets
            for metric in metrics_of(results, dataset)
            if any(results.has(row, dataset, metric) for row in block.rows)
        ]
        pairs = pairs_of_block(results, block)
        marks = collect_marks(pairs, block.baselines)
        means: dict[str, dict[str, dict[str, float | None]]] = {row: {} for row in block.rows}
        for row, (dataset, metric) in itertools.product(block.rows, cells):
            if results.has(row, dataset, metric):
                means[row].setdefault(dataset, {})[metric] = results.mean(row, dataset, metric)
        best = {cell: rows for cell, rows in best_models(pairs, means).items() if cell[1] not in PLAIN}
        columns: dict[tuple[str | None, str], list[Figure]] = {
            cell: _column(results, block, *cell, paper, marks, best.get(cell, ())) for cell in cells
        }
        columns |= _averages(results, block, cells)
        text = _caption(block, caption, seeds, bool(paper), bool(marks))
        tables += arrange(columns, unique_names(list(block.rows.values())), "", text, title_of)
    return tables


def title_of(metric: str) -> str:
    """Return the printed name of a metric."""
    return _TITLES.get(metric) or (PLAIN[metric][1] if metric in PLAIN else metric_title(metric))


def value_text(metric: str, value: float) -> str:
    """Return the printed value of a metric; `-` if it is not finite."""
    if not np.isfinite(value):
        return "-"
    return f"{value:,.{PLAIN[metric][0]}f}" if metric in PLAIN else f"{100 * value:.2f}"


def _column(
    results: SeededResults,
    block: Block,
    dataset: str,
    metric: str,
    paper: Paper,
    marks: Mapping[tuple[str | None, str, str], str],
    best: Sequence[str],
) -> list[Figure]:
    is_measured = {row: results.has(row, dataset, metric) for row in block.rows}
    texts = {
        row: value_text(metric, results.mean(row, dataset, metric)) if is_measured[row] else "-" for row in block.rows
    }
    figures = []
    for row, text in texts.items():
        rank = best.index(row) if row in best else None
        suffix = ""
        if is_measured[row]:
            suffix = _suffix(results, row, dataset, metric, paper.get((row, dataset, metric)))
        figures.append(Figure(text, rank, marks.get((dataset, row, metric), ""), suffix))
    return figures


def _suffix(results: SeededResults, row: str, dataset: str, metric: str, paper: float | None) -> str:
    """Return deviation and result of the paper, printed after a value."""
    deviation = results.deviation(row, dataset, metric)
    parts = [f"± {value_text(metric, deviation)}"] if np.isfinite(deviation) else []
    if paper is not None:
        parts.append(f"[{paper:,g}]" if metric in PLAIN else f"[{round(100 * paper, 2):g}]")
    return " ".join(parts)


def _averages(
    results: SeededResults, block: Block, cells: Sequence[tuple[str, str]]
) -> dict[tuple[str | None, str], list[Figure]]:
    """Return the mean of each row over the data sets; nothing if a row or metric is missing on one of them."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells))
    metrics = [metric for metric in dict.fromkeys(metric for _, metric in cells) if metric not in PLAIN]
    is_complete = all(results.has(row, one, metric) for row in block.rows for one in datasets for metric in metrics)
    if len(datasets) < 2 or not is_complete:
        return {}
    return {
        (None, metric): [
            Figure(value_text(metric, float(np.mean([results.mean(row, one, metric) for one in datasets]))))
            for row in block.rows
        ]
        for metric in metrics
    }


def _caption(block: Block, caption: str, seeds: int, paper: bool, marked: bool) -> str:
    text = f"{block.name}. {caption}" if block.name else caption
    text += " Metrics x 100."
    if seeds > 1:
        text += f" {best_rule('t-test over queries and seeds')}" if len(block.rows) > 1 else ""
        text += f" Means and standard deviations over {seeds} seeds."
    else:
        text += " One seed: no difference of a trained row is tested."
    if paper:
        text += " The result of the paper is in brackets."
    if marked:
        text += f" {marks_legend([block.rows[one] for one in block.baselines])}, by the same test."
    return text


def page_text(
    *,
    title: str,
    lines: Sequence[str],
    tables: Sequence[PaperTable],
    claims: Sequence[tuple[Claim, Verdict]],
    trainings: Sequence[Sequence[str]],
    paper: Mapping[str, Sequence[Sequence[str]]],
    figures: Mapping[str, str],
    further: Mapping[str, Sequence[Sequence[str]]],
    pairs: Sequence[str] = (),
) -> str:
    """Return the page in Markdown.

    Args:
        lines: source, scale and data of the study.
        trainings: row of titles, and one row for each training.
        paper: tables of the paper, by title: a row of titles, then the other rows.
        figures: captions by path, relative to the page.
        further: tables of curves and of the study's own analysis, by title, as those of the paper.
        pairs: lines about all pairs of rows.
    """
    parts = [f"# {title}\n", "".join(f"{line}  \n" for line in lines), markdown(tables)]
    if claims:
        verdicts = [[claim.text, claim.source, f"**{one.word}**", one.because] for claim, one in claims]
        table = markdown_table([["claim", "source", "verdict", "values"], *verdicts])
        parts += ["## Claims, tested on the table\n", table, _RULE]
    if pairs:
        parts += ["## All pairs\n", "```\n" + "".join(f"{line}\n" for line in pairs) + "```\n"]
    parts += [f"![{caption}]({path})\n" for path, caption in figures.items()]
    sections = {**further, **{f"{name}, as printed": rows for name, rows in paper.items()}}
    if len(trainings) > 1:
        sections["Trainings"] = trainings
    for heading, rows in sections.items():
        parts += [f"## {heading}\n", markdown_table(rows)]
    return "\n".join(parts)
