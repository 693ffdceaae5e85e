"""Table of a report, and its forms: aligned text, Markdown, LaTeX (booktabs) and HTML.

Names of models and data sets are untrusted: every form keeps them within their cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

from raytriever.evaluation.names import unique_names
from raytriever.terminal import markdown_cell, markdown_table, one_line

TEXT_WIDTH = 12  # least width of a column of numbers in text
WIDE = 20  # characters of a cell that takes two lines on a page
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
_MARKDOWN_RANKS = {0: "**{}**", 1: "<u>{}</u>", None: "{}"}
_LATEX_RANKS = {0: r"\textbf{%s}", 1: r"\underline{%s}", None: "%s"}


@dataclass(frozen=True)
class Cell:
    """Number in a table.

    Args:
        value: sort key of the column on a page; a cell without a value is sorted last.
        mark: superscript after the text.
        hint: explanation of the mark, shown on a page as a tooltip.
        rank: 0 is bold, 1 is underlined where a table is printed; None is neither.
        behind: text after the mark.
    """

    text: str
    value: float | None = None
    mark: str = ""
    hint: str = ""
    rank: int | None = None
    behind: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Table of a report. A `str` in a row is text, and is sorted as text on a page.

    Args:
        title: caption in print, and heading on a page.
        columns: titles of the columns; the first is above the names of the rows.
        note: explanation below the table of a page.
        group: heading of tables of which a page shows one at a time.
        spans: in print, titles above groups of columns after the first, each with its number of columns.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    group: str = ""
    spans: Sequence[tuple[str, int]] = ()

    def as_text(self) -> str:
        """Return aligned lines: the names of the rows, and numbers with their marks."""
        # Two names that differ only in control characters stay two rows, and at least two blanks separate two titles.
        labels = unique_names([one_line(_text(row[0])) for row in self.rows])
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
            # Markdown has one line of titles. With several groups each title gets its group's name, so all differ.
            several = len(self.spans) > 1
            over = [group if several or column == 0 else "" for group, width in self.spans for column in range(width)]
            named = zip(over, columns[1:], strict=True)
            columns[1:] = [f"{markdown_cell(group)} {title}".strip() for group, title in named]
        rows = [[_markdown(cell) for cell in row] for row in self.rows]
        return markdown_table([columns, *rows], right=self._first_number(), escape=str)

    def as_latex(self) -> str:
        """Return a `table` environment, which needs the packages booktabs and amssymb; the title is its caption."""
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
        """Return heading, sortable table and note; rows of one data set have its name in the heading."""
        names = {_text(row[0]) for row in self.rows} if self.columns[:1] == ["data set"] else set()
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


def _text(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


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
    # A number and its interval: two lines keep the columns narrow.
    text = escape(cell.text).replace(" (", "<br>(", 1) if len(cell.text) > WIDE else escape(cell.text)
    return f"<td{best}{value}{hint}>{text}<sup>{escape(cell.mark)}</sup></td>"


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
