"""Tables of an evaluation: as plain text, and as the papers print them, in Markdown and in LaTeX (booktabs).

In a table of a paper the best figure is bold and the second is underlined if the difference is significant. Marks of
significance are raised. Up to `WIDE` data sets are columns, each with all metrics, and each model is a row (Optimizing
What Matters, Table 1). More data sets are rows, and each model is a column, in one table per metric (Training dense
retrievers with multiple positive passages, Table 3). Averages are means over the data sets. Figures are multiplied by
100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from raytriever.evaluation.differences.rows import TestedPair
from raytriever.evaluation.differences.significance import (
    Best,
    best_models,
    best_rule,
    collect_marks,
    marks_legend,
    pair_lines,
)
from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import format_absent, metric_title
from raytriever.mining.analyser import analyser_line
from raytriever.terminal import markdown_cell, markdown_table, one_line

# Least width of a column of figures.
FIGURE_WIDTH = 12


def metrics_table(rows: Mapping[str, Mapping[str, float]], marks: Mapping[tuple[str, str], str] | None = None) -> str:
    """Format one line per system under a header line; figures have four decimals.

    All systems have the same metrics. Marks of significance, by system and metric, are behind the figures.
    """
    # Two names that differ only in control characters stay two rows.
    labels = dict(zip(rows, unique_names([one_line(system) for system in rows]), strict=True))
    names = list(next(iter(rows.values())))
    marks = marks or {}
    label_width = max(map(len, labels.values()))
    mark_width = max((len(mark) for mark in marks.values()), default=0)
    titles = unique_names([metric_title(name) for name in names])
    # At least two blanks separate two titles: a long title widens its column.
    widths = [max(FIGURE_WIDTH, len(title) + 2) for title in titles]
    header = [f"{title:>{width}}" + " " * mark_width for title, width in zip(titles, widths, strict=True)]
    lines = [" " * label_width + "".join(header)]
    for system, metrics in rows.items():
        cells = [
            f"{metrics[name]:>{width}.4f}{marks.get((system, name), ''):<{mark_width}}"
            for name, width in zip(names, widths, strict=True)
        ]
        lines.append(f"{labels[system]:<{label_width}}" + "".join(cells))
    return "\n".join(lines)


def systems_note(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how each dense model reads texts. Models of different widths compare: each is searched on its own.

    Stored forms are left out: their table has the widths.
    """
    lines = []
    for name, system in systems.items():
        if "width" in system and "dtype" not in system:
            prompts = "".join(
                f", {side} prompt {system[f'{side}_prompt']!r}"
                for side in ("query", "passage")
                if system[f"{side}_prompt"]
            )
            lines.append(f"{name}: width {system['width']}, {system['similarity']}{prompts}")
    return "\n".join(lines)


def training_notes(figures: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Describe the effect of training, and what the figures leave out, for below the table of a finished run.

    `figures` is the content of `metrics.json`.
    """
    lines = [format_absent(figures["judged"]), *pair_lines(figures["pairs"], names)]
    lines += [analyser_line(figures["bm25_analyser"]), figures["bm25_analyser"]["warning"]]
    return "\n".join(filter(None, lines))


WIDE = 4
AVERAGE = "Average"
Rows = Mapping[str, Mapping[str, Mapping[str, float]]]
Marks = Mapping[tuple[str | None, str, str], str]


@dataclass(frozen=True)
class Figure:
    """One figure of a table; `rank` is 0 for the significantly best model, 1 for the second, otherwise None."""

    text: str
    rank: int | None = None
    mark: str = ""
    behind: str = ""


@dataclass(frozen=True)
class PaperTable:
    """Table that is not yet formatted.

    Args:
        groups: titles above groups of columns, each with its number of columns; empty for a single line of titles.
        columns: titles of the columns; the first is above the rows' names.
        rows: a name and a figure for each further column.
    """

    caption: str
    groups: list[tuple[str, int]]
    columns: list[str]
    rows: list[tuple[str, list[Figure]]]


def paper_tables(
    models: Rows, pairs: Sequence[TestedPair], splits: Mapping[str, str], baselines: Sequence[str]
) -> list[PaperTable]:
    """Return the tables of an evaluation: one table, or one for each metric if there are more than `WIDE` data sets.

    All models have the same metrics and data sets. `splits` are by data set.
    """
    sets, marks, best = next(iter(models.values())), collect_marks(pairs, baselines), best_models(pairs, models)
    averaged: list[str | None] = [*sets, None] if len(sets) > 1 else [*sets]
    columns = {
        (one, metric): _column(models, one, metric, marks, best)
        for one in averaged
        for metric in next(iter(sets.values()))
    }
    caption = _caption(splits, baselines if marks else (), len(models))
    return arrange(columns, list(models), "Model", caption, metric_title)


def arrange(
    columns: Mapping[tuple[str | None, str], list[Figure]],
    rows: Sequence[str],
    first: str,
    caption: str,
    title: Callable[[str], str],
) -> list[PaperTable]:
    """Return one table, or one for each metric if there are more than `WIDE` data sets.

    `columns` have a figure for each row, by data set and metric. The data set None is the mean over all.
    """
    datasets = list(dict.fromkeys(one for one, _ in columns))
    names = dict(zip(datasets, unique_names([AVERAGE if one is None else one for one in datasets]), strict=True))
    if sum(one is not None for one in datasets) <= WIDE:
        groups = [(names[one], sum(dataset == one for dataset, _ in columns)) for one in datasets]
        table = [(row, [column[index] for column in columns.values()]) for index, row in enumerate(rows)]
        return [PaperTable(caption, groups, [first, *(title(metric) for _, metric in columns)], table)]
    return [
        PaperTable(
            f"{title(metric)}. {caption}",
            [],
            unique_names(["Data set", *rows]),
            [(names[one], columns[one, metric]) for one in datasets if (one, metric) in columns],
        )
        for metric in dict.fromkeys(metric for _, metric in columns)
    ]


def _column(models: Rows, dataset: str | None, metric: str, marks: Marks, best: Best) -> list[Figure]:
    """Return a figure for each model: a metric on one data set, or its mean over all data sets."""
    ahead = list(best.get((dataset, metric), ()))
    figures = []
    for model, rows in models.items():
        value = float(np.mean([row[metric] for row in rows.values()])) if dataset is None else rows[dataset][metric]
        mark = marks.get((dataset, model, metric), "")
        figures.append(Figure(f"{100 * value:.2f}", ahead.index(model) if model in ahead else None, mark))
    return figures


def _caption(splits: Mapping[str, str], baselines: Sequence[str], models: int) -> str:
    caption = f"Split {split_text(splits)}, x 100." + (f" {best_rule('paired t-test')}" if models > 1 else "")
    return f"{caption} {marks_legend(baselines)}." if baselines else caption


def split_text(splits: Mapping[str, str]) -> str:
    """Name the split of most data sets, then that of each other one: `test (MSMARCO: dev)`."""
    usual = Counter(splits.values()).most_common(1)[0][0]
    others = ", ".join(f"{name}: {split}" for name, split in splits.items() if split != usual)
    return f"{usual} ({others})" if others else usual


_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}
_LATEX_MARKS = {"+": "+", "-": "-", "◆": r"\blacklozenge", "◇": r"\lozenge"}


def markdown(tables: Sequence[PaperTable]) -> str:
    """Format the tables in Markdown, each under its caption."""
    return "\n".join(_markdown(table) for table in tables)


def latex(tables: Sequence[PaperTable]) -> str:
    """Format the tables as `table` environments; they need the packages booktabs and amssymb."""
    return "% wants \\usepackage{booktabs,amssymb}\n" + "\n".join(_latex(table) for table in tables)


def _markdown(table: PaperTable) -> str:
    columns = [markdown_cell(title) for title in table.columns]
    if table.groups:
        # Markdown has one line of titles. With several groups each title gets its group's name, so all titles differ.
        several = len(table.groups) > 1
        over = [group if several or column == 0 else "" for group, width in table.groups for column in range(width)]
        columns = [
            columns[0],
            *(f"{markdown_cell(group)} {title}".strip() for group, title in zip(over, columns[1:], strict=True)),
        ]
    rows = [[markdown_cell(name), *map(_markdown_figure, figures)] for name, figures in table.rows]
    return f"{table.caption}\n\n{markdown_table([columns, *rows], right=1, escape=str)}"


def _markdown_figure(figure: Figure) -> str:
    text = {0: "**{}**", 1: "<u>{}</u>", None: "{}"}[figure.rank]
    behind = f" {figure.behind}" if figure.behind else ""
    return text.format(figure.text) + (f"<sup>{figure.mark}</sup>" if figure.mark else "") + behind


def _latex(table: PaperTable) -> str:
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule"]
    if table.groups:
        over = [rf"\multicolumn{{{width}}}{{c}}{{{_escaped(group)}}}" for group, width in table.groups]
        ends = [2 + sum(width for _, width in table.groups[:count]) for count in range(len(table.groups) + 1)]
        rules = [rf"\cmidrule(lr){{{start}-{end - 1}}}" for start, end in pairwise(ends)]
        lines += [_row(["", *over], str), " ".join(rules)]
    lines += [_row(table.columns, _escaped), r"\midrule"]
    for name, figures in table.rows:
        lines.append(_row([_escaped(name), *map(_latex_figure, figures)], str))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _row(cells: Sequence[str], write: Callable[[str], str]) -> str:
    return " & ".join(map(write, cells)) + r" \\"


def _latex_figure(figure: Figure) -> str:
    text = {0: r"\textbf{%s}", 1: r"\underline{%s}", None: "%s"}[figure.rank]
    mark = "".join(_LATEX_MARKS[one] for one in figure.mark)
    behind = f" {_escaped(figure.behind)}" if figure.behind else ""
    return text % figure.text + (f"$^{{{mark}}}$" if mark else "") + behind


def _escaped(text: str) -> str:
    text = one_line(text)
    for mark, command in (("◆", r"$\blacklozenge$"), ("◇", r"$\lozenge$")):
        text = text.replace(mark, f"\0{command}\0")
    # Every second piece between the null characters is already a command.
    pieces = text.split("\0")
    return "".join(
        piece if index % 2 else "".join(_LATEX.get(character, character) for character in piece)
        for index, piece in enumerate(pieces)
    )
