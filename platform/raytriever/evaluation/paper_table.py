"""Tables of results as the papers print them, in Markdown and in LaTeX (booktabs).

The best figure is bold and the second underlined where the difference is more than noise; marks of significance are
raised. Up to `WIDE` data sets are columns, each with all metrics, and each model is a row (*Optimizing What Matters*,
Table 1). More data sets are rows, and each model is a column, in one table per metric (*Training dense retrievers
with multiple positive passages*, Table 3). Averages are means over the data sets. Figures are times 100."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from raytriever.evaluation.names import unique_names
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.significance import BEST_RULE, Best
from raytriever.evaluation.tables import markdown_cell
from raytriever.terminal import one_line

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
    """The tables, each under its caption."""
    return "\n".join(_markdown(table) for table in tables)


def latex(tables: Sequence[PaperTable]) -> str:
    """The tables as `table` environments; they want the packages booktabs and amssymb."""
    return "% wants \\usepackage{booktabs,amssymb}\n" + "\n".join(_latex(table) for table in tables)


def _markdown(table: PaperTable) -> str:
    columns = [markdown_cell(title) for title in table.columns]
    if table.groups:
        # One line of titles: of several groups each title has its group's name, so that no two are alike.
        several = len(table.groups) > 1
        over = [group if several or place == 0 else "" for group, width in table.groups for place in range(width)]
        columns = [
            columns[0],
            *(f"{markdown_cell(group)} {title}".strip() for group, title in zip(over, columns[1:], strict=True)),
        ]
    lines = [columns, ["---", *("---:" for _ in columns[1:])]]
    lines += [[markdown_cell(name), *map(_markdown_figure, figures)] for name, figures in table.rows]
    return f"{table.caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_figure(figure: Figure) -> str:
    text = {0: "**{}**", 1: "<u>{}</u>"}.get(figure.place if figure.place is not None else -1, "{}")
    behind = f" {figure.behind}" if figure.behind else ""
    return text.format(figure.text) + (f"<sup>{figure.mark}</sup>" if figure.mark else "") + behind


def _latex(table: PaperTable) -> str:
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.caption)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule"]
    if table.groups:
        over = [rf"\multicolumn{{{width}}}{{c}}{{{_escaped(group)}}}" for group, width in table.groups]
        ends = [2 + sum(width for _, width in table.groups[:place]) for place in range(len(table.groups) + 1)]
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
    text = {0: r"\textbf{%s}", 1: r"\underline{%s}"}.get(figure.place if figure.place is not None else -1, "%s")
    mark = "".join(_LATEX_MARKS[one] for one in figure.mark)
    behind = f" {_escaped(figure.behind)}" if figure.behind else ""
    return text % figure.text + (f"$^{{{mark}}}$" if mark else "") + behind


def _escaped(text: str) -> str:
    text = one_line(text)
    for mark, command in (("◆", r"$\blacklozenge$"), ("◇", r"$\lozenge$")):
        text = text.replace(mark, f"\0{command}\0")
    # Every other piece between the signs is a command already.
    pieces = text.split("\0")
    return "".join(
        piece if place % 2 else "".join(_LATEX.get(character, character) for character in piece)
        for place, piece in enumerate(pieces)
    )
