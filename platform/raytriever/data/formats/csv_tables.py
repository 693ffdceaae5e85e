"""CSV and TSV files of queries and passages, or of sentence pairs of natural language inference.

The caller names the columns, or they are recognized by their names. A cell with a list of texts holds several
passages. A column `score` is read only if the caller names it, because published scores are often numbers of votes.

Rows are converted to rows of the formats `sentence-transformers` and `pairs`. Their splits come from a column `split`,
or from the names of the files. A single file without splits is divided by hashes of its queries (`train_dev_test`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from raytriever.core.errors import DataError, flag_of, setting
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.data_sources import SourceFile
from raytriever.data.formats.csv_and_tsv import TableFile, texts_in
from raytriever.data.formats.file_rows import object_of, pieces_of
from raytriever.data.formats.plan import ANSWERABLE, TEXT_WORDS, RowParser, split_of_row
from raytriever.data.formats.question_answering import CONTEXTS
from raytriever.data.formats.tevatron_dpr_and_pairs import NEGATIVE, SCORES, VOTES
from raytriever.data.records_and_bad_rows import BadRow, Records

SIGNATURE = "CSV or TSV: columns of queries and passages, or premise, hypothesis, label"
UNREADABLE = ""  # name of the field that says why a row of the table cannot be read
_REMEDY = f"name the columns: raytriever prepare {flag_of('columns')} query=COLUMN,passage=COLUMN"
_SPLIT = "split"
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LABELS = tuple(name for name in SCORES if name not in VOTES)


class Role(NamedTuple):
    """Role of a column: its name in `--columns`, the column names with this role, and whether it may be missing."""

    name: str
    names: tuple[str, ...]
    optional: bool = False


QUERY = Role("query", ("query", "question", "anchor", "queries", "questions", "q", "prompt", "search", "sentence1"))
PASSAGE = Role(
    "passage",
    (
        *("passage", "answer", "positive", "document", "text", "context", "response", "answers", "content", "a"),
        "sentence2",
    ),
)
SCORE = Role("score", (), optional=True)


def choose_columns(
    where: str, columns: Sequence[str], roles: Sequence[Role], named: Mapping[str, str], remedy: str
) -> dict[str, str]:
    """Return the column for each role that a table has. No column has two roles. Raise `DataError` if a column that the
    user named is missing, or a required role has no column.

    Args:
        named: columns that the user has named, by role.
        remedy: what the user can do if a column is not recognized.
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
        raise DataError(f"no column {names} is recognized; it has {', '.join(columns)}", where, remedy)
    return chosen


def parse_columns(text: str) -> dict[str, str]:
    """Parse `--columns`, such as `query=Frage,passage=Antwort`; raises `DataError` for another form."""
    named = {}
    for part in text.split(","):
        role, sign, column = (piece.strip() for piece in part.partition("="))
        if not (role and sign and column):
            remedy = f"write {setting('columns')} query=COLUMN,passage=COLUMN"
            raise DataError(f"{part!r} is no ROLE=COLUMN", setting("columns"), remedy)
        named[role] = column
    return named


def split_row(parse: RowParser, row: Mapping[str, Any], records: Records, _: str) -> None:
    """Parse a row whose split is in its column `split`."""
    parse(row, records, split_of_row(row))


def peek(file: SourceFile, columns: str) -> tuple[frozenset[str], tuple[str, ...], str]:
    """Return the fields of a table, the name of each column in the data format, and a note on how the table is read.

    `columns` is the value of `--columns`; if it is empty, all columns are recognized. Raise `DataError` if the file is
    empty or not UTF-8, or a column is missing."""
    table = TableFile.open(file.where)
    names = _names(table, columns)
    roles = {"anchor": "query", "positive": "passage"}
    read = [f"{roles.get(name, name)} = {column!r}" for name, column in zip(names, table.columns, strict=True) if name]
    votes = votes_note(table.columns, names, f"name it: {flag_of('columns')} score=COLUMN")
    note = f"{PurePosixPath(file.path).name} is read with {', '.join(read)}, {table.description}{votes}"
    return frozenset(names), names, note


def read_rows(where: str, size: int, names: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """Yield rows as JSON objects, each with the number of its first line (see `pieces_of`). Errors give this number.

    `names` has a name for each column; columns with the name "" are left out. Raise `DataError` if there is no row, or
    the file is broken."""
    rows = TableFile.open(where).rows()
    lines = ((line, json.dumps(_row(fields, names), ensure_ascii=False).encode()) for line, fields in rows)
    return pieces_of(lines, size, where, "give rows below the header")


def row_of(line: bytes) -> dict[str, Any]:
    """Parse a row that `read_rows` yielded; raises `BadRow`, with the reason, if the row of the table is bad."""
    row = object_of(line)
    if UNREADABLE in row:
        raise BadRow(row[UNREADABLE])
    return row


def _row(fields: list[str] | str, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(fields, str):
        return {UNREADABLE: fields}
    row: dict[str, Any] = {}
    try:
        for name, value in zip(names, fields, strict=True):
            if name and (value.strip() or not NEGATIVE.fullmatch(name)):
                row[name] = value_of(name, value)
    except BadRow as reason:
        return {UNREADABLE: str(reason)}
    return row


def value_of(name: str, value: Any) -> Any:
    """Return the value of a cell in the column `name` of the data format: a number in a column of scores, a list of
    texts if the cell holds a list. Raise `BadRow` if the cell only looks like a list."""
    if name in SCORES:
        return number_of(value)
    is_texts = name in ("anchor", "positive", CONTEXTS) or NEGATIVE.fullmatch(name)
    return texts_in(value) if is_texts and isinstance(value, str) else value


def _names(table: TableFile, given: str) -> tuple[str, ...]:
    named = parse_columns(given) if given else {}
    folded = [column.casefold().replace(" ", "_") for column in table.columns]
    for read in (("premise", "hypothesis", "label"), ("user_input", CONTEXTS)):
        if not named and set(read) <= set(folded):
            return tuple(name if name in (*read, _SPLIT) else "" for name in folded)
    try:
        chosen = choose_columns(table.where, table.columns, (QUERY, PASSAGE, SCORE), named, _REMEDY)
    except DataError as error:
        raise (None if named else _header_error(table.where, table.columns, table.separator)) or error from None
    first = next((fields for _, fields in table.rows() if not isinstance(fields, str)), [])
    return column_names(table.columns, first, chosen)


def _header_error(where: str, columns: Sequence[str], separator: str) -> DataError | None:
    """Return the error of a table whose first row has texts or numbers instead of column names, else None."""
    if not any(len(name.split()) >= TEXT_WORDS or name.isdecimal() for name in columns):
        return None
    what = f"has no header: its first row is {', '.join(repr(name[:30]) for name in columns[:4])}"
    names = ("query", "positive", "negative") if len(columns) == 3 else ("query", "passage")
    header = "<TAB>".join(names) if separator == "\t" else separator.join(names)
    return DataError(what, where, f"write the names of its columns above it, such as {header}")


def column_names(columns: Sequence[str], first: Sequence[Any], chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Return, for each column of a table of pairs, its name in the data format; "" for a column that is not read.

    `first` has the values of the first row, because a label column must hold numbers. `chosen` has the names of
    the columns for the query, the passage and perhaps the score."""
    own = {chosen["query"]: "anchor", chosen["passage"]: "positive"}
    if "score" in chosen:
        own[chosen["score"]] = "score"
    labels = () if "score" in chosen else SCORES if chosen["query"].casefold() == "sentence1" else _LABELS
    names = []
    for column, value in zip_longest(columns, first):
        name = column.casefold().replace(" ", "_")
        is_score = name in labels and isinstance(number_of(value), int | float)
        is_read = is_score or name in (_SPLIT, ANSWERABLE) or NEGATIVE.fullmatch(name)
        names.append(own.get(column) or (name if is_read else ""))
    return tuple(names)


def number_of(value: Any) -> Any:
    """Return the number that a text holds, such as `1` or ` 0.5`; return any other value unchanged."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return value
    return int(value) if value.strip().lstrip("+-").isdecimal() else float(value)


def votes_note(columns: Sequence[str], names: Sequence[str], remedy: str) -> str:
    """Return a note about a column called `score` that is not read; empty if there is none."""
    votes = [column for column, name in zip(columns, names, strict=True) if not name and column.casefold() in VOTES]
    if not votes:
        return ""
    return f"; {votes[0]!r} is not read, since it may count votes; if it grades the passage, {remedy}"
