"""Tables of a report as aligned text, Markdown, LaTeX (booktabs) and HTML; and the tables of metrics.

Names of models and data sets are untrusted: each format escapes them, so that they stay within their cell.

Printed tables have two layouts. With at most `WIDE` data sets, each model is a row. Each data set is a group of
columns, with a column for each metric (Optimizing What Matters, Table 1). With more data sets, there is a table for
each metric, whose rows are data sets and whose columns are models (Training dense retrievers with multiple positive
passages, Table 3). Averages are over the data sets; numbers are multiplied by 100. All tables show the same tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import pairwise

from raytriever.core.terminal import markdown_cell, markdown_table, one_line
from raytriever.evaluation.differences.system_significance import (
    CORRECTED,
    MEAN,
    best_models,
    best_rule,
    collect_marks,
    marks_legend,
    pairs_with,
)
from raytriever.evaluation.evaluated_datasets import unique_names
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.results import TestedPair, datasets_of, metrics_of
from raytriever.metrics.significance_tests import LEVEL

TEXT_WIDTH = 12  # smallest width of a column of numbers in text
TWO_LINES = 20  # characters; a page splits a longer cell with an interval into two lines
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "◆": r"$\blacklozenge$",
    "◇": r"$\lozenge$",
}
_LATEX_MARKS = {"+": "+", "-": "-", "◆": r"\blacklozenge", "◇": r"\lozenge"}
_MARKDOWN_RANKS = {0: "**{}**", 1: "<u>{}</u>", None: "{}"}
_LATEX_RANKS = {0: r"\textbf{%s}", 1: r"\underline{%s}", None: "%s"}


@dataclass(frozen=True)
class Cell:
    """Cell of a table with a number."""

    text: str
    value: float | None = None  # sort key on a page; cells without a value come last
    mark: str = ""  # superscript after the text
    hint: str = ""  # explanation of the mark, shown on a page as a tooltip
    rank: int | None = None  # 0 is bold, 1 is underlined in printed tables; None is neither
    behind: str = ""  # text after the mark


@dataclass(frozen=True)
class ReportTable:
    """Table of a report. A `str` in a row is text, and a page sorts it as text."""

    title: str  # caption in print, and heading on a page
    columns: Sequence[str]  # titles of the columns; the first is above the names of the rows
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""  # explanation below the table of a page
    group: str = ""  # heading of a group of tables of which a page shows one at a time
    # Titles above groups of columns in printed tables, each with its number of columns. The first column has no group.
    spans: Sequence[tuple[str, int]] = ()

    def as_text(self) -> str:
        """Return aligned lines with the names of the rows and the numbers with their marks."""
        # Names that `one_line` makes equal get a number, so that they remain different rows.
        labels = unique_names([one_line(_cell(row[0]).text) for row in self.rows])
        titles = unique_names([one_line(title) for title in self.columns[1:]])
        cells = [[_cell(cell) for cell in row[1:]] for row in self.rows]
        label_width = max(map(len, labels))
        mark_width = max((len(cell.mark) for row in cells for cell in row), default=0)
        widths = [max(TEXT_WIDTH, len(title) + 2) for title in titles]
        head = "".join(f"{title:>{width}}" + " " * mark_width for title, width in zip(titles, widths, strict=True))
        lines = [" " * label_width + head]
        for label, row in zip(labels, cells, strict=True):
            texts = [f"{cell.text:>{width}}{cell.mark:<{mark_width}}" for cell, width in zip(row, widths, strict=True)]
            lines.append(f"{label:<{label_width}}" + "".join(texts))
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """Return the table in Markdown, without its title and note."""
        columns = [markdown_cell(title) for title in self.columns]
        if self.spans:
            # Markdown allows only one line of titles. With several groups, each title begins with the name of its
            # group, so that titles are unique.
            several = len(self.spans) > 1
            over = [group if several or column == 0 else "" for group, width in self.spans for column in range(width)]
            named = zip(over, columns[1:], strict=True)
            columns[1:] = [f"{markdown_cell(group)} {title}".strip() for group, title in named]
        rows = [[_markdown(cell) for cell in row] for row in self.rows]
        return markdown_table([columns, *rows], right=self._first_number(), escape=str)

    def as_latex(self) -> str:
        """Return a `table` environment with the title as caption. It needs the packages booktabs and amssymb."""
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        if self.spans:
            over = [rf"\multicolumn{{{width}}}{{c}}{{{_escaped(group)}}}" for group, width in self.spans]
            ends = [2 + sum(width for _, width in self.spans[:count]) for count in range(len(self.spans) + 1)]
            rules = [rf"\cmidrule(lr){{{start}-{end - 1}}}" for start, end in pairwise(ends)]
            lines += [_latex_row(["", *over]), " ".join(rules)]
        lines += [_latex_row(list(map(_escaped, self.columns))), r"\midrule"]
        lines += [_latex_row(list(map(_latex, row))) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
        return "\n".join(lines)

    def as_html(self) -> str:
        """Return heading, sortable table and note. If all rows are of the same data set, the heading names it."""
        names = {_cell(row[0]).text for row in self.rows} if self.columns[:1] == ["data set"] else set()
        if len(names) == 1:
            rows, title = [row[1:] for row in self.rows], f"{self.title}, {names.pop()}"
            return replace(self, title=title, columns=self.columns[1:], rows=rows).as_html()
        columns = [[row[number] for row in self.rows] for number in range(len(self.columns))]
        classes = [' class="text"' if all(isinstance(cell, str) for cell in column) else "" for column in columns]
        head = "".join(
            f'<th scope="col"{text}><button type="button">{escape(name)}</button></th>'
            for name, text in zip(self.columns, classes, strict=True)
        )
        body = "".join(f"<tr>{''.join(map(_html, row))}</tr>\n" for row in self.rows)
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        title = escape(self.title)
        return (
            f'<h3>{title}</h3><div class="scroll" role="region" aria-label="{title}" tabindex="0">'
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>{note}"
        )

    def _first_number(self) -> int | None:
        number = len(self.columns)
        while number and all(isinstance(row[number - 1], Cell) for row in self.rows):
            number -= 1
        return number if number < len(self.columns) else None


def printed(tables: Sequence[ReportTable]) -> str:
    """Return tables in Markdown, each below its title."""
    return "\n".join(f"{table.title}\n\n{table.as_markdown()}" for table in tables)


def latex(tables: Sequence[ReportTable]) -> str:
    """Return a LaTeX file of tables."""
    return "% wants \\usepackage{booktabs,amssymb}\n" + "\n".join(table.as_latex() for table in tables)


def _cell(cell: str | Cell) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _markdown(cell: str | Cell) -> str:
    cell = _cell(cell)
    behind = f" {cell.behind}" if cell.behind else ""
    mark = f"<sup>{cell.mark}</sup>" if cell.mark else ""
    return _MARKDOWN_RANKS[cell.rank].format(markdown_cell(cell.text)) + mark + behind


def _latex(cell: str | Cell) -> str:
    cell = _cell(cell)
    mark = "".join(_LATEX_MARKS[sign] for sign in cell.mark)
    behind = f" {_escaped(cell.behind)}" if cell.behind else ""
    return _LATEX_RANKS[cell.rank] % _escaped(cell.text) + (f"$^{{{mark}}}$" if mark else "") + behind


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _html(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f'<td class="text" data-value="{escape(cell)}">{escape(cell)}</td>'
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    best = ' class="best"' if cell.rank == 0 else ""
    # Put a number and its interval on two lines, so that columns stay narrow.
    text = escape(cell.text).replace(" (", "<br>(", 1) if len(cell.text) > TWO_LINES else escape(cell.text)
    return f"<td{best}{value}{hint}>{text}<sup>{escape(cell.mark)}</sup></td>"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in one_line(text))


WIDE, AVERAGE, NOTHING = 4, "Average", "–"
Values = Mapping[str, Mapping[str, Mapping[str, float | None]]]  # by model, data set and metric
Rows = list[list[str | Cell]]


def number_cell(value: float | None, *, signed: bool = False) -> Cell:
    """Return a cell with a number that has four decimals; a dash for None."""
    if value is None or value != value:
        return Cell(NOTHING)
    return Cell(f"{value:+.4f}" if signed else f"{value:.4f}", float(value))


def p_cell(p: float) -> Cell:
    """Return a cell with a p-value that has four decimals."""
    return Cell("<0.0001" if p < 1e-4 else f"{p:.4f}", p)


def significance_cell(p: float) -> Cell:
    """Return a cell with `yes` or `no` and the corrected p-value."""
    shown = "<0.001" if p < 1e-3 else f"{p:.3f}"
    return Cell(f"{'yes' if p < LEVEL else 'no'}, p {shown}", p)


class MetricTables:
    """Tables of the metrics of models.

    The tests of all pairs decide marks, bold numbers and hints. Each baseline has its own marks."""

    def __init__(self, models: Values, pairs: Sequence[TestedPair], baselines: Sequence[str]) -> None:
        self.models, self.pairs, self.baselines = models, pairs, baselines
        self.datasets, self.metrics = datasets_of(models), metrics_of(models)
        self.marks, self.best = collect_marks(pairs, baselines), best_models(pairs, models)

    def value(self, model: str, dataset: str | None, metric: str) -> float | None:
        """Return a metric of a model on a data set (None: the mean over all); None if any value is missing."""
        if dataset is not None:
            return self.models[model].get(dataset, {}).get(metric)
        values = [self.value(model, name, metric) for name in self.datasets]
        whole = [value for value in values if value is not None]
        return sum(whole) / len(whole) if whole and len(whole) == len(values) else None

    def cell(self, model: str, dataset: str | None, metric: str, percent: bool = False) -> Cell:
        """Return the cell of a model with mark, hint and rank. It has four decimals, or two as a percentage."""
        value, key = self.value(model, dataset, metric), (dataset, model, metric)
        cell = number_cell(value)
        if percent and value is not None:
            cell = replace(cell, text=f"{100 * value:.2f}")
        ahead = list(self.best.get((dataset, metric), ()))
        rank = ahead.index(model) if model in ahead else None
        return replace(cell, mark=self.marks.get(key, ""), hint=self._hints.get(key, ""), rank=rank)

    def of_dataset(self, dataset: str) -> ReportTable:
        """Return the table of one data set for a terminal."""
        rows: Rows = [[model, *(self.cell(model, dataset, metric) for metric in self.metrics)] for model in self.models]
        return ReportTable(dataset, ["", *map(metric_title, self.metrics)], rows)

    def in_print(self, splits: Mapping[str, str]) -> list[ReportTable]:
        """Return the printed tables: one, or one for each metric if there are more than `WIDE` data sets."""
        averaged: list[str | None] = [*self.datasets, None] if len(self.datasets) > 1 else [*self.datasets]
        columns = {
            (dataset, metric): [self.cell(model, dataset, metric, percent=True) for model in self.models]
            for dataset in averaged
            for metric in self.metrics
            if any(self.value(model, dataset, metric) is not None for model in self.models)
        }
        caption = f"Split {split_text(splits)}, x 100." if splits else "x 100."
        if self.pairs:
            caption += f" {best_rule('paired t-test')}"
        if self.marks:
            caption += f" {marks_legend(self.baselines)}."
        return arrange(columns, list(self.models), "Model", caption, metric_title)

    def on_page(self) -> list[ReportTable]:
        """Return a table for each metric (models by data sets, with the mean), one of all metrics and one of all tests.

        If there is only one data set, the tables for each metric are left out."""
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
    """Return one printed table, or one for each metric if there are more than `WIDE` data sets.

    `columns` have a number for each row, by data set and metric. The data set None is the mean over all data sets."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in columns))
    names = dict(zip(datasets, unique_names([AVERAGE if name is None else name for name in datasets]), strict=True))
    if sum(name is not None for name in datasets) <= WIDE:
        spans = [(names[name], sum(dataset == name for dataset, _ in columns)) for name in datasets]
        cells: Rows = [[row, *(column[index] for column in columns.values())] for index, row in enumerate(rows)]
        return [ReportTable(caption, [first, *(title(metric) for _, metric in columns)], cells, spans=spans)]
    return [
        ReportTable(
            f"{title(metric)}. {caption}",
            unique_names(["Data set", *rows]),
            [[names[name], *columns[name, metric]] for name in datasets if (name, metric) in columns],
        )
        for metric in dict.fromkeys(metric for _, metric in columns)
    ]


def split_text(splits: Mapping[str, str]) -> str:
    """Format the most frequent split, then the data sets with another split: `test (MSMARCO: dev)`."""
    usual = Counter(splits.values()).most_common(1)[0][0]
    others = ", ".join(f"{name}: {split}" for name, split in splits.items() if split != usual)
    return f"{usual} ({others})" if others else usual


def pairs_table(pairs: Sequence[TestedPair], title: str = "Significance", note: str = "") -> list[ReportTable]:
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
    legend = (
        f"Significant: p, after Holm's correction over the pairs and data sets of a metric, is below {LEVEL}. From and "
        "to: the 95 % interval of the difference. This interval and the last p are not corrected. Effect: the mean of "
        "the differences, divided by their standard deviation."
    )
    return [ReportTable(title, columns, rows, f"{note} {legend}".strip())]
