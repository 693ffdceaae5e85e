"""Reader of data sets by their name in `ir_datasets` (MacAvaney et al. 2021, arXiv:2103.02280), as
`ir_datasets:beir/scifact`.

The judgements of the name, and of the names directly below it that contain a split (`beir/scifact/train`), are read.
The name decides the split; it is `test` if the name contains none. Rows become JSON lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from raytriever.data.formats.beir import DocumentRow, JudgementRow, QueryRow
from raytriever.data.formats.plan import Part, Plan, RowParser, split_if_named
from raytriever.data.formats.rows import pieces_of
from raytriever.data.sources import IR_DATASETS, Source
from raytriever.errors import DataError, setting
from raytriever.options import did_you_mean

_DOCS, _QUERIES, _QRELS = "docs", "queries", "qrels"


def plan(source: Source) -> Plan:
    """Return the parts of a name; raises `DataError` if `ir_datasets` is missing or has no such name, texts or
    judgements."""
    name = source.where.removeprefix(IR_DATASETS)
    registry = _package().registry
    _load(name)
    below = [other for other in registry if other.startswith(name + "/") and "/" not in other[len(name) + 1 :]]
    judged = [name, *sorted(other for other in below if split_if_named(other[len(name) :]))]
    judged = [other for other in judged if _load(other).has_qrels()]
    query_parts = [name] if _load(name).has_queries() else judged
    if not _load(name).has_docs() or not query_parts or not judged:
        lacks = "documents" if not _load(name).has_docs() else "judgements of a split"
        remedy = f"choose a name below it: {', '.join(below[:8])}" if below else "choose another name"
        raise DataError(f"has no {lacks}", source.where, remedy)
    splits = {other: split_if_named(other) or "test" for other in judged}
    parts = [_part(name, _DOCS, DocumentRow()), *(_part(other, _QUERIES, QueryRow()) for other in query_parts)]
    parts += [_part(other, _QRELS, JudgementRow(split), split) for other, split in splits.items()]
    return Plan("ir_datasets", tuple(parts), tuple(dict.fromkeys(splits.values())))


def _part(name: str, what: str, parse: RowParser, split: str | None = None) -> Part:
    return Part(f"{IR_DATASETS}{name}#{what}", "ir", parse, split=split)


def read_rows(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of JSON lines, see `rows.pieces_of`. Raise `DataError` if `ir_datasets` is missing, or cannot read
    or download what was asked for."""
    return pieces_of(_json_lines(where), size, where, "choose another name")


def _json_lines(where: str) -> Iterator[bytes]:
    name, _, what = where.removeprefix(IR_DATASETS).partition("#")
    records, row_of = _ROWS[what]
    count = 0
    try:
        for record in getattr(_load(name), records)():
            yield json.dumps(row_of(record), ensure_ascii=False).encode(errors="surrogatepass")
            count += 1
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        message = " ".join(str(error).split())[:200]
        what = f"cannot be read after row {count} ({type(error).__name__}: {message})"
        raise DataError(what, where, "check the network, or put its files under IR_DATASETS_HOME") from error


def _document(record: Any) -> dict[str, Any]:
    if hasattr(record, "text"):
        return {"_id": record.doc_id, "title": getattr(record, "title", ""), "text": record.text}
    return {"_id": record.doc_id, "text": record.default_text()}


_ROWS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    _DOCS: ("docs_iter", _document),
    _QUERIES: ("queries_iter", lambda record: {"_id": record.query_id, "text": record.default_text()}),
    _QRELS: (
        "qrels_iter",
        lambda record: {"query-id": record.query_id, "corpus-id": record.doc_id, "score": record.relevance},
    ),
}


def _package() -> Any:
    try:
        import ir_datasets
    except ImportError as error:
        what = "the package ir_datasets is not installed"
        raise DataError(what, setting("dataset", f"{IR_DATASETS}..."), "pip install 'raytriever[sources]'") from error
    return ir_datasets


def _load(name: str) -> Any:
    package = _package()
    try:
        return package.load(name)
    except KeyError as error:
        hint = did_you_mean(name, list(package.registry))
        remedy = hint if hint.startswith("did") else "see ir-datasets.com for the names"
        raise DataError("ir_datasets has no such name", setting("dataset", f"{IR_DATASETS}{name}"), remedy) from error
