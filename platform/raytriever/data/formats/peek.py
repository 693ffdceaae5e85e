"""The first rows of a file, read to tell what it is."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import NamedTuple

from raytriever.data.arrays import read_elements
from raytriever.data.files import open_stream, reading
from raytriever.data.formats.plan import Kind, kind_of
from raytriever.data.quarantine import BadRow
from raytriever.data.rows import BYTE_ORDER_MARK, numbered_rows, object_of
from raytriever.data.source import SourceFile
from raytriever.errors import DataError

_ROWS = 10
_BLOCK = 1 << 16


class Peek(NamedTuple):
    """How a file is read, and the fields of its first row that is an object; none where no row among ten is one."""

    kind: Kind
    fields: frozenset[str]


def peek(file: SourceFile) -> Peek:
    """Look into a file; raises `DataError` if it is empty or broken as a whole."""
    if not file.size:
        raise DataError("no row in it, the file is empty", file.where, "write it again, or remove it")
    kind = kind_of(file.path)
    if kind == "parquet":
        from raytriever.data.parquet import column_names

        return Peek(kind, frozenset(column_names(file.where)))
    if kind == "array":
        if _begins_with(file.where, b"["):
            _, rows = next(read_elements(file.where, _BLOCK))
            return Peek(kind, _fields(rows.split(b"\n")[:_ROWS]))
        kind = "json"  # JSON lines are often published as .json
    numbered = numbered_rows(file.where)
    with closing(numbered):  # type: ignore[type-var]
        return Peek(kind, _fields([row for _, row in islice(numbered, _ROWS)]))


def _begins_with(where: str, sign: bytes) -> bool:
    with reading(where, [0]), closing(open_stream(where)) as stream:
        return stream.read(_BLOCK).removeprefix(BYTE_ORDER_MARK).lstrip().startswith(sign)


def _fields(rows: list[bytes]) -> frozenset[str]:
    for row in rows:
        try:
            return frozenset(object_of(row))
        except BadRow:
            continue
    return frozenset()
