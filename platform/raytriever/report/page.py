"""Single HTML file that opens offline, with tables, figures, queries and settings.

The file contains its script and its style. Its content security policy blocks all requests. Names, queries and passages
are untrusted: this module escapes them. The script reads its data as JSON and inserts them as text only. The style and
the script are in `page/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from raytriever.report.queries import choose_queries
from raytriever.store.commit import write_atomically

WIDE = 20  # characters of a cell that takes two lines


@dataclass(frozen=True)
class Cell:
    """One value of a table.

    Args:
        text: text on the page.
        value: sort key of the column; a cell without a value is sorted last.
        mark: superscript after the text.
        hint: explanation of the mark, shown as a tooltip.
        best: whether the text is bold.
    """

    text: str
    value: float | None = None
    mark: str = ""
    hint: str = ""
    best: bool = False


@dataclass(frozen=True)
class HtmlTable:
    """Sortable table. A `str` in a row is sorted as text. The page shows one table of a `group` at a time."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    group: str = ""


@dataclass(frozen=True)
class Picture:
    """SVG or PNG file with its caption and its heading."""

    caption: str
    file: Path
    heading: str = ""


@dataclass(frozen=True)
class Page:
    """Content of a page, in this order.

    Args:
        title: heading of the page.
        about: paragraphs below the heading.
        tables: tables; the tables of one group follow each other.
        pictures: figures; the figures of one heading follow each other.
        queries: content of `per_query/` by data set, of which the page shows some; see `report.queries`.
        settings: settings of the run, as text.
    """

    title: str
    about: Sequence[str] = ()
    tables: Sequence[HtmlTable] = ()
    pictures: Sequence[Picture] = ()
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: str = ""


def write_page(path: Path, page: Page) -> None:
    """Write the page as one HTML file."""
    style, script = _read_template("page.css"), _read_template("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "Results": _tables(page.tables),
        "Figures": _pictures(page.pictures),
        "Queries": _read_template("queries.html") if page.queries else "",
        "Settings": f'<pre tabindex="0">{escape(page.settings)}</pre>' if page.settings else "",
    }
    sections = {name: html for name, html in parts.items() if html}
    # The JSON has no `<`, so that no text of a query can close the script element.
    queries = {dataset: choose_queries(content) for dataset, content in page.queries.items()}
    content = json.dumps({"queries": queries}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    values = {
        "title": escape(page.title),
        "policy": policy,
        "style": style,
        "script": script,
        "about": "".join(f"<p>{escape(text)}</p>" for text in page.about),
        "contents": "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections),
        "sections": "\n".join(
            f'<section id="{name.lower()}"><h2>{name}</h2>\n{html}</section>' for name, html in sections.items()
        ),
        "data": content,
    }
    # One pass: inserted text is not searched for placeholders.
    write_atomically(path, re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _read_template("page.html")))


def _read_template(name: str) -> str:
    return (files("raytriever.report") / "page" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}"


def _tables(tables: Sequence[HtmlTable]) -> str:
    html = []
    for number, (group, grouped) in enumerate(groupby(tables, key=lambda table: table.group)):
        members = list(grouped)
        if group and len(members) > 1:
            options = "".join(f'<option value="{i}">{escape(t.title)}</option>' for i, t in enumerate(members))
            html.append(
                f'<div class="controls" hidden><label>{escape(group)} <select data-group="{number}">{options}'
                "</select></label></div>"
            )
        html += [f'<div data-of="{number}" data-number="{i}">{_table(table)}</div>' for i, table in enumerate(members)]
    return "\n".join(html)


def _without_data_set(table: HtmlTable) -> HtmlTable:
    """Return a table of one data set with its name in the title, in place of a column that repeats it."""
    names = {str(row[0]) for row in table.rows} if table.columns[:1] == ["data set"] else set()
    if len(names) != 1:
        return table
    return replace(
        table, title=f"{table.title}, {names.pop()}", columns=table.columns[1:], rows=[row[1:] for row in table.rows]
    )


def _table(table: HtmlTable) -> str:
    table = _without_data_set(table)
    textual = [all(isinstance(row[column], str) for row in table.rows) for column in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{_class_attribute(text)}><button type="button">{escape(name)}</button></th>'
        for name, text in zip(table.columns, textual, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    title = escape(table.title)
    return (
        f'<h3>{title}</h3><div class="scroll" role="region" aria-label="{title}" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>{note}"
    )


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f'<td class="text" data-value="{escape(cell)}">{escape(cell)}</td>'
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    best = ' class="best"' if cell.best else ""
    # A figure and its interval: two lines keep the columns narrow.
    text = escape(cell.text).replace(" (", "<br>(", 1) if len(cell.text) > WIDE else escape(cell.text)
    return f"<td{best}{value}{hint}>{text}<sup>{escape(cell.mark)}</sup></td>"


def _class_attribute(text: bool) -> str:
    return ' class="text"' if text else ""


def _pictures(pictures: Sequence[Picture]) -> str:
    html = []
    for heading, members in groupby(pictures, key=lambda picture: picture.heading):
        figures = "".join(_figure(picture) for picture in members)
        html.append(f'{f"<h3>{escape(heading)}</h3>" if heading else ""}<div class="pictures">{figures}</div>')
    return "\n".join(html)


def _figure(picture: Picture) -> str:
    kind = {".svg": "svg+xml", ".png": "png"}[picture.file.suffix]
    content = base64.b64encode(picture.file.read_bytes()).decode("ascii")
    caption = escape(picture.caption)
    image = f'<img alt="{caption}" src="data:image/{kind};base64,{content}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
