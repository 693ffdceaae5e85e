"""Tables with a header that people keep: CSV and TSV, read by line, and the meaning of their columns.

The separator of a CSV file is the one of `,`, `;`, tab and `|` that gives its header the most columns. A TSV file has
quotation marks around whole fields only, as spreadsheets write them; other marks belong to the text. Columns are named
by the caller, or recognised by their names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from raytriever.data.formats.rows import BYTE_ORDER_MARK, MOST_ROW_BYTES
from raytriever.data.sources import open_stream, reading
from raytriever.errors import DataError, setting
from raytriever.options import did_you_mean

_SEPARATORS = ",;\t|"
_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_NAMES_OF_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "|"}


class Role(NamedTuple):
    """Meaning of a column: its name for the caller, names by which it is recognised, and whether it may be missing."""

    name: str
    names: tuple[str, ...]
    optional: bool = False


QUERY = Role("query", ("query", "question", "anchor", "queries", "questions", "q", "prompt", "search", "sentence1"))
PASSAGE = Role(
    "passage",
    (
        "passage",
        "answer",
        "positive",
        "document",
        "text",
        "context",
        "response",
        "answers",
        "content",
        "a",
        "sentence2",
    ),
)


@dataclass(frozen=True)
class TableFile:
    """CSV or TSV file: its path or URI, the separator of its fields, and the names in its header."""

    where: str
    separator: str
    columns: tuple[str, ...]

    @classmethod
    def open(cls, where: str) -> TableFile:
        """Read the header; raises `DataError` if the file is empty, no UTF-8, or names a column twice."""
        with reading(where, [0]), closing(open_stream(where)) as stream:
            first = next(_lines(stream, where), "")
        if not first.strip():
            raise DataError("the file is empty", where, "give a header with the names of the columns, and rows")
        separators = "\t" if where.removesuffix(".gz").endswith(".tsv") else _SEPARATORS
        headers = {separator: _fields_of(first, separator) for separator in separators}
        separator = max(headers, key=lambda one: len(headers[one]))
        names = tuple(name.strip() for name in headers[separator])
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"the header names the column {twice!r} twice", where, "rename one of them")
        return cls(where, separator, names)

    def rows(self) -> Iterator[tuple[int, list[str] | str]]:
        """Yield, for each row that is not blank, the line on which it begins, and its fields or why it is bad.

        Raises:
            DataError: the file is no UTF-8, or a quotation mark is never closed.
        """
        read, width = [0], len(self.columns)
        with reading(self.where, read), closing(open_stream(self.where)) as stream:
            lines = _lines(stream, self.where)
            if self.separator == "\t":
                table: Iterator[list[str]] = (_fields_of(line, "\t") for line in lines)
            else:
                csv.field_size_limit(MOST_ROW_BYTES)
                table = csv.reader(lines, delimiter=self.separator, strict=True)
            end = 0
            try:
                for fields in table:
                    begin = end + 1
                    end = end + 1 if self.separator == "\t" else table.line_num  # type: ignore[attr-defined]
                    read[0] = end
                    if begin == 1 or not any(map(str.strip, fields)):
                        continue
                    if len(fields) == width:
                        yield begin, fields
                    else:
                        yield begin, f"{len(fields)} fields, the header has {width}"
            except csv.Error as error:
                raise DataError(
                    f"is no CSV ({error})",
                    f"{self.where} line {end + 1}",
                    "close its quotation marks, or write them twice",
                ) from error

    @property
    def description(self) -> str:
        """Words for the line that says how the file was read."""
        marks = ", quotation marks kept unless they enclose a whole field" if self.separator == "\t" else ""
        return f"columns separated by {_NAMES_OF_SEPARATORS[self.separator]}{marks}"


def choose_columns(
    where: str, columns: Sequence[str], roles: Sequence[Role], named: Mapping[str, str], remedy: str
) -> dict[str, str]:
    """Return the column of each role that the table has.

    Args:
        where: the file, for messages.
        columns: names of the columns of the table.
        roles: what is looked for; a column has one role.
        named: columns that the user has named, by role.
        remedy: what the user can do where a column is not recognised.

    Raises:
        DataError: a column that the user named is missing, or one that is needed is not recognised.
    """
    chosen: dict[str, str] = {}
    known = [role.name for role in roles]
    for name, column in named.items():
        if name not in known:
            raise DataError(f"unknown name {name!r}", setting("columns"), did_you_mean(name, known))
        if column not in columns:
            hint = did_you_mean(column, columns)
            remedy = hint if hint.startswith("did") else "name one of these"
            raise DataError(f"has no column {column!r}; it has {', '.join(columns)}", where, remedy)
        chosen[name] = column
    for role in roles:
        free = {name.casefold().replace(" ", "_"): name for name in columns if name not in chosen.values()}
        match = next((free[name] for name in role.names if name in free), None)
        if role.name not in chosen and match is not None:
            chosen[role.name] = match
    missing = [role for role in roles if role.name not in chosen and not role.optional]
    if missing:
        names = " and ".join(f"of the {role.name}" for role in missing)
        raise DataError(f"no column {names} is recognised; it has {', '.join(columns)}", where, remedy)
    return chosen


def parse_columns(text: str) -> dict[str, str]:
    """Parse `--columns`, such as `query=Frage,passage=Antwort`; raises `DataError` for another form."""
    named = {}
    for part in text.split(","):
        role, sign, column = (piece.strip() for piece in part.partition("="))
        if not (role and sign and column):
            raise DataError(
                f"{part!r} is no ROLE=COLUMN",
                setting("columns"),
                f"write {setting('columns')} query=COLUMN,passage=COLUMN",
            )
        named[role] = column
    return named


def _lines(stream: object, where: str) -> Iterator[str]:
    """Yield the lines of a stream as text, with their ends; raises `DataError` for bytes that are not UTF-8."""
    read = stream.readline  # type: ignore[attr-defined]
    number = 0
    while line := read(MOST_ROW_BYTES + 1):
        number += 1
        if len(line) > MOST_ROW_BYTES:
            raise DataError(f"the line is longer than {MOST_ROW_BYTES >> 20} MB", f"{where} line {number}", "cut it")
        try:
            yield (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"is no CSV file in UTF-8 (byte 0x{line[error.start]:02x} in line {number})",
                where,
                "save it again as UTF-8",
            ) from error


def _fields_of(line: str, separator: str) -> list[str]:
    """Return the fields of one line."""
    line = line.rstrip("\r\n")
    if separator == "\t":
        return [_unquoted(field) for field in line.split("\t")]
    return next(csv.reader([line], delimiter=separator), [])


def _unquoted(field: str) -> str:
    """Return the text of a whole field in quotation marks whose inner ones are written twice; other fields as they are.

    A text may begin and end with quotation marks of its own, such as `"Open" or "closed"`.
    """
    return field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field
