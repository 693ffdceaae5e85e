"""Single HTML file that opens offline, with tables, figures, queries and settings.

The file contains its script and its style. Its content security policy blocks all requests. Names, queries and passages
are untrusted, so this module escapes them. The script reads its data as JSON and inserts it only as text. The style and
the script are in `page/`.

A browser cannot open a page with all queries of a large data set. So each metric and model has a list of the worst
queries, and each pair of models has lists of the largest differences. The first query of every list
is chosen, then the second of every list, and so on, up to `MAX_QUERIES`. So all lists end at the same depth."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.core.store.commit import write_atomically
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.result_tables import ReportTable

MAX_QUERIES = 200  # maximum number of queries of one data set on a page
MAX_DEPTH = 25  # maximum number of queries of one list


@dataclass(frozen=True)
class Picture:
    """SVG or PNG file with its caption and its heading."""

    caption: str
    file: Path
    heading: str = ""


@dataclass(frozen=True)
class Page:
    """Content of a page, in the order of the fields."""

    title: str
    about: Sequence[str] = ()
    tables: Sequence[ReportTable] = ()  # tables of one group must be consecutive
    pictures: Sequence[Picture] = ()  # figures with the same heading must be consecutive
    # Content of `per_query/` by data set; `choose_queries` selects those that the page shows.
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
    # The JSON must not contain `<`, so that no query can close the script element.
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
    # Replace all placeholders in one pass, so that inserted text is not searched for placeholders.
    write_atomically(path, re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _read_template("page.html")))


def _read_template(name: str) -> str:
    return (files("raytriever.experiments.report") / "page" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}"


def _tables(tables: Sequence[ReportTable]) -> str:
    html = []
    for number, (group, grouped) in enumerate(groupby(tables, key=lambda table: table.group)):
        members = list(grouped)
        if group and len(members) > 1:
            options = "".join(f'<option value="{i}">{escape(t.title)}</option>' for i, t in enumerate(members))
            html.append(
                f'<div class="controls" hidden><label>{escape(group)} <select data-group="{number}">{options}'
                "</select></label></div>"
            )
        html += [
            f'<div data-of="{number}" data-number="{i}">{table.as_html()}</div>' for i, table in enumerate(members)
        ]
    return "\n".join(html)


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


def choose_queries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Select the queries of one data set for the script of a page, from `per_query/DATASET.json`; see
    `evaluation_files.per_query_content` (a value may be null).

    Return `{"models", "metrics", "of", "depth", "documents": [[id, title, text]], "queries": [{"id", "text", "values":
    [[value per metric] per model], "top": [[[document, grade, score]] per model], "relevant": [[document, grade]]}]}`.
    A document is given by its index in `documents`, which has no duplicates."""
    models = list(content["models"])
    metrics = list(dict.fromkeys(name for model in content["models"].values() for name in model["metrics"]))
    count = len(content["queries"])
    values = np.full((len(models), len(metrics), count), np.nan)
    for row, model in enumerate(content["models"].values()):
        for column, metric in enumerate(metrics):
            if metric in model["metrics"]:
                values[row, column] = np.array(model["metrics"][metric], dtype=np.float64)  # null becomes NaN
    chosen, depth = _choose(values)
    documents: dict[tuple[str, str, str], int] = {}

    def index_of(document: Sequence[Any]) -> int:
        return documents.setdefault((str(document[0]), str(document[1] or ""), str(document[2])), len(documents))

    queries = [
        {
            "id": content["queries"][query],
            "text": content["texts"][query],
            "values": [[_value(value) for value in row] for row in values[:, :, query]],
            "top": [
                [[index_of(document), document[4], _value(document[3])] for document in model["top"][query]]
                for model in content["models"].values()
            ],
            "relevant": [[index_of(document), document[3]] for document in content["relevant"][query]],
        }
        for query in chosen
    ]
    return {
        "models": models,
        "metrics": [metric_title(name) for name in metrics],
        "of": count,
        "depth": min(depth, MAX_DEPTH),
        "documents": list(documents),
        "queries": queries,
    }


def _choose(values: Float64[ndarray, "models metrics queries"]) -> tuple[list[int], int]:
    """Return the indices of the chosen queries, in ascending order, and the depth to which each list is complete."""
    models, metrics, count = values.shape
    if count <= MAX_QUERIES:
        return list(range(count)), count
    keys = [values[model, metric] for model in range(models) for metric in range(metrics)]
    keys += [
        np.where(difference < 0, difference, np.nan)
        for index, other in permutations(range(models), 2)
        for difference in values[index] - values[other]
    ]
    lists = [np.argsort(key, kind="stable")[: np.count_nonzero(~np.isnan(key))] for key in keys]
    chosen: set[int] = set()
    for depth in range(MAX_DEPTH):
        more = chosen | {int(ordered[depth]) for ordered in lists if depth < len(ordered)}
        if len(more) > MAX_QUERIES and depth:
            return sorted(chosen), depth
        chosen = more
    return sorted(chosen), MAX_DEPTH


def _value(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
