"""CSV and TSV files of queries and passages, or of sentence pairs of inference, as parts of a data set.

Rows become the rows of the formats `sentence-transformers` and `pairs`. Their splits are those of a column `split`, or
of the names of the files. A single file without either is divided by the digest of its queries: a tenth each are `dev`
and `test`, and the rest is `train`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any

from raytriever.data.formats import pairs, sentence_transformers
from raytriever.data.formats.plan import Part, Plan, RowParser, split_if_named, split_of_row
from raytriever.data.formats.tables import PASSAGE, QUERY, TableFile, choose_columns, parse_columns
from raytriever.data.quarantine import BadRow
from raytriever.data.records import Records
from raytriever.data.sources import Source, SourceFile
from raytriever.errors import DataError, flag_of

SIGNATURE = "CSV or TSV: columns of queries and passages, or premise, hypothesis, label"
UNREADABLE = ""  # field of a row that the table could not give: the reason
_REMEDY = f"name them: raytriever prepare {flag_of('columns')} query=COLUMN,passage=COLUMN"
_HELD_OUT = 0.1  # share of the queries in dev and in test
_SPLIT = "split"
_NEGATIVE = re.compile(r"negative(?:_\d+)?")

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Division:
    """Split of each query by the digest of its text: test up to the first bound, dev up to the second, train above."""

    test: bytes
    dev: bytes

    @classmethod
    def of(cls, texts: Iterable[str], where: str) -> Division:
        """Return the bounds for the texts of the queries; raises `DataError` for fewer than three different ones."""
        ordered = sorted({_digest(text) for text in texts})
        if len(ordered) < 3:
            raise DataError(
                f"has {len(ordered)} different queries, too few to divide into train, dev and test",
                where,
                "give at least 3, or a column `split`",
            )
        size = max(1, int(len(ordered) * _HELD_OUT))
        return cls(ordered[size - 1], ordered[2 * size - 1])

    def split_of(self, text: str) -> str:
        """Return the split of a query."""
        digest = _digest(text)
        return "test" if digest <= self.test else "dev" if digest <= self.dev else "train"


@dataclass(frozen=True)
class DividedRow:
    """Row whose split is in its column `split`, or follows from its query; the rest is the parser's of a format."""

    parse: RowParser
    division: Division | None

    def __call__(self, row: Mapping[str, Any], records: Records) -> None:
        """Add the row to its split."""
        query = row.get("anchor")
        if self.division is None:
            split = split_of_row(row)
        else:
            split = self.division.split_of(query) if isinstance(query, str) else "train"
        replace(self.parse, split=split)(row, records)  # type: ignore[type-var]


def plan(source: Source, files: Sequence[SourceFile], columns: str) -> Plan:
    """Return the plan of CSV and TSV files, with a note on how they are read.

    Args:
        source: the data set.
        files: its tables.
        columns: `--columns`, or empty to recognise all columns.

    Raises:
        DataError: a file is empty or no UTF-8, or a column is missing.
    """
    named = parse_columns(columns) if columns else {}
    parts, notes, formats = [], [], set()
    for file in files:
        table = TableFile.open(file.where)
        names = _names(table, named)
        is_pairs = "premise" in names
        formats.add(pairs.NAME if is_pairs else sentence_transformers.NAME)
        split = split_if_named(file.path)
        parse = (pairs if is_pairs else sentence_transformers).parser(frozenset(names), split or "train")
        assert parse is not None  # `_names` has named its columns
        division = None
        if _SPLIT in names:
            split = None
            parse = parse if is_pairs else DividedRow(parse, None)
        elif split is None and not is_pairs and len(files) == 1:
            division = Division.of(_queries(table, names), file.where)
            parse = DividedRow(parse, division)
        elif split is None:
            split = "train"
        parts.append(Part(file.where, "table", parse, names, split))
        notes.append(_note(file, table, names, division is not None))
    if len(formats) > 1:
        raise DataError(
            "some of its tables are pairs of inference, some are not", source.where, "give one of the files"
        )
    known = tuple(dict.fromkeys(part.split for part in parts if part.split))
    return Plan(
        formats.pop(), tuple(parts), known if all(part.split for part in parts) else None, note="; ".join(notes)
    )


def read_rows(where: str, size: int, names: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """Pieces of at least `size` bytes, but for the last: rows as JSON objects, each on its line of the file.

    Args:
        where: the file.
        size: bytes.
        names: name of each column; columns named "" are left out.

    Raises:
        DataError: there is no row, or the file is broken.
    """
    first, number, lines, length = 0, 0, list[bytes](), 0
    for line, fields in TableFile.open(where).rows():
        if not lines:
            first = number = line
        lines += [b""] * (line - number)
        lines.append(json.dumps(_row(fields, names), ensure_ascii=False).encode())
        number, length = line + 1, length + len(lines[-1])
        if length >= size:
            yield first, b"\n".join(lines) + b"\n"
            lines, length = [], 0
    if lines:
        yield first, b"\n".join(lines) + b"\n"
    elif not first:
        raise DataError("no row in it", where, "give rows below the header")


def check_readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `read_rows`; raises `BadRow` with the reason why the table could not give it."""
    if UNREADABLE in row:
        raise BadRow(row[UNREADABLE])
    return row


def _row(fields: list[str] | str, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(fields, str):
        return {UNREADABLE: fields}
    row: dict[str, Any] = {}
    for name, value in zip(names, fields, strict=True):
        if name in sentence_transformers.SCORES:
            row[name] = number_of(value)
        elif name and (value.strip() or not _NEGATIVE.fullmatch(name)):
            row[name] = value
    return row


def _names(table: TableFile, named: Mapping[str, str]) -> tuple[str, ...]:
    """Return the name that each column has in its format, "" for a column that is not read."""
    folded = [column.casefold().replace(" ", "_") for column in table.columns]
    if not named and {"premise", "hypothesis", "label"} <= set(folded):
        return tuple(name if name in ("premise", "hypothesis", "label", _SPLIT) else "" for name in folded)
    chosen = choose_columns(table.where, table.columns, (QUERY, PASSAGE), named, _REMEDY)
    first = next((fields for _, fields in table.rows() if not isinstance(fields, str)), [])
    return column_names(table.columns, first, chosen["query"], chosen["passage"])


def column_names(columns: Sequence[str], first: Sequence[Any], query: str, passage: str) -> tuple[str, ...]:
    """Return the name that each column of a table of pairs has in its format, "" for a column that is not read.

    Args:
        columns: their names in the table.
        first: values of the first row; a column of scores holds numbers.
        query: column of queries.
        passage: column of passages.
    """
    own, names = {query: "anchor", passage: "positive"}, []
    for column, value in zip_longest(columns, first):
        name = column.casefold().replace(" ", "_")
        is_score = name in sentence_transformers.SCORES and isinstance(number_of(value), int | float)
        is_read = is_score or name == _SPLIT or _NEGATIVE.fullmatch(name)
        names.append(own.get(column) or (name if is_read else ""))
    return tuple(names)


def number_of(value: Any) -> Any:
    """Return the number of a text, such as `1` or ` 0.5`; any other value as it is."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    return int(value) if value.strip().lstrip("+-").isdecimal() else float(value)


def _queries(table: TableFile, names: Sequence[str]) -> Iterator[str]:
    index = names.index("anchor")
    return (fields[index] for _, fields in table.rows() if not isinstance(fields, str))


def _note(file: SourceFile, table: TableFile, names: Sequence[str], is_divided: bool) -> str:
    roles = {"anchor": "query", "positive": "passage"}
    read = [f"{roles.get(name, name)} = {column!r}" for name, column in zip(names, table.columns, strict=True) if name]
    divided = "; a tenth of the queries each are dev and test, by the digest of their text" if is_divided else ""
    return f"{PurePosixPath(file.path).name} is read with {', '.join(read)}, {table.description}{divided}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
