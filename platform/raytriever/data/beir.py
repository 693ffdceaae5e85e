"""The BEIR layout, read row by row, every row checked: corpus, queries, and judgements by split.

1. `corpus.jsonl[.gz]`: `{"_id", "title", "text"}`; 2. `queries.jsonl[.gz]`: `{"_id", "text"}`;
3. `qrels/<split>.tsv`: a header, then query id, document id and integer score (Thakur et al. 2021,
arXiv:2104.08663). A bad row goes to the quarantine; a file broken as a whole stops the reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.data.dataset import Documents, Judgements, Queries
from raytriever.data.quarantine import BadRow, Quarantine
from raytriever.data.rows import encodable, numbered_rows, object_of, string_field, text_of
from raytriever.errors import DataError

QRELS_HEADER = ["query-id", "corpus-id", "score"]
_INTEGER = re.compile(r"-?[0-9]{1,9}")


def splits_of(folder: Path) -> dict[str, Path]:
    """The judgement files of a folder by the name of their split."""
    return {file.stem: file for file in sorted((folder / "qrels").glob("*.tsv"))}


def jsonl_file(folder: Path, stem: str) -> Path:
    """`stem.jsonl` or `stem.jsonl.gz` in the folder; raises `DataError` naming what is there instead."""
    for file in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"):
        if file.is_file():
            return file
    there = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    raise DataError(
        f"no {stem}.jsonl or {stem}.jsonl.gz in it; it holds {', '.join(there[:12]) or 'nothing'}",
        where=str(folder),
        remedy="give a folder in BEIR layout (corpus.jsonl, queries.jsonl, qrels/<split>.tsv)",
    )


def read_documents(folder: Path, quarantine: Quarantine) -> Documents:
    """The corpus of the folder; raises `DataError` if it is missing, broken, empty or too bad."""
    columns = _read_texts(jsonl_file(folder, "corpus"), quarantine, _title)
    return Documents(columns[0], columns[1], columns[2])


def read_queries(folder: Path, quarantine: Quarantine) -> Queries:
    """The queries of the folder; raises like `read_documents`."""
    columns = _read_texts(jsonl_file(folder, "queries"), quarantine, lambda row: "")
    return Queries(columns[0], columns[2])


def read_judgements(
    file: Path, query_positions: dict[str, int], document_positions: dict[str, int], quarantine: Quarantine
) -> Judgements:
    """One split; raises `DataError` for a wrong header, a broken file, too many bad rows, or no row."""
    found: dict[tuple[int, int], int] = {}
    numbered = numbered_rows(file)
    _check_header(file, next(numbered, (1, b""))[1])
    rows = 0
    for number, row in numbered:
        rows += 1
        try:
            pair, score = _judgement(row, query_positions, document_positions)
            if found.setdefault(pair, score) != score:
                raise BadRow(f"the pair was judged {found[pair]} before and is {score} here")
        except BadRow as bad:
            quarantine.add(file, number, str(bad), row)
    quarantine.close(file, rows)
    if not found:
        raise DataError("no judgement in it", str(file), f"give rows of {'<TAB>'.join(QRELS_HEADER)}")
    table = np.array([(*pair, score) for pair, score in sorted(found.items())], dtype=np.int64)
    return Judgements(*np.ascontiguousarray(table.T))


def _check_header(file: Path, row: bytes) -> None:
    header = row.decode(errors="replace")
    if header.split("\t") != QRELS_HEADER:
        raise DataError(
            f"the header is {header[:80]!r}",
            where=f"{file} row 1",
            remedy=f"it must be {'<TAB>'.join(QRELS_HEADER)}",
        )


def _read_texts(
    file: Path, quarantine: Quarantine, title_of: Callable[[dict[str, Any]], str]
) -> tuple[list[str], list[str], list[str]]:
    """The columns id, title and text of a file; an id repeated with the same content counts once."""
    found: dict[str, tuple[str, str]] = {}
    rows = 0
    for number, raw in numbered_rows(file):
        rows += 1
        try:
            row = object_of(raw)
            name, content = _id(row), (title_of(row), string_field(row, "text"))
            if found.setdefault(name, content) != content:
                raise BadRow(f"id {name!r} stood before with a different text")
        except BadRow as bad:
            quarantine.add(file, number, str(bad), raw)
    quarantine.close(file, rows)
    if not found:
        raise DataError("no row in it", str(file), 'give one JSON object a line, {"_id", "text"}')
    titles, texts = (list(column) for column in zip(*found.values(), strict=True))
    return list(found), titles, texts


def _id(row: dict[str, Any]) -> str:
    """The row's id as a string; whole numbers, as some exporters write them, are taken by their digits."""
    value = row.get("_id")
    return str(value) if type(value) is int else string_field(row, "_id")


def _title(row: dict[str, Any]) -> str:
    title = row.get("title") or ""
    if not isinstance(title, str):
        raise BadRow(f'"title" is {type(title).__name__}, not a string')
    return encodable(title, "title")


def _judgement(
    row: bytes, query_positions: dict[str, int], document_positions: dict[str, int]
) -> tuple[tuple[int, int], int]:
    fields = text_of(row).split("\t")
    if len(fields) != 3:
        raise BadRow(f"{len(fields)} columns, not 3 separated by tabs")
    query, document, score = fields
    if query not in query_positions:
        raise BadRow(f"unknown query id {query!r}")
    if document not in document_positions:
        raise BadRow(f"unknown document id {document!r}")
    if not _INTEGER.fullmatch(score):
        raise BadRow(f"score {score[:20]!r} is not an integer")
    return (query_positions[query], document_positions[document]), int(score)
