"""A table of results in Markdown and in LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from raytriever.retrieval.paper_table import Figure, PaperTable
from raytriever.retrieval.table import markdown_cell
from raytriever.terminal import one_line

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
