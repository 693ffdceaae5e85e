"""Blocks of whole rows of a file. One process reads a block; another one may parse it.

1. `read_blocks` streams a `Part`, one file of a data set, as `FileBlock`s of about 1 MiB, cut only between rows.
2. `parse_block` converts a block to `Records` in any process, because parts and blocks can be pickled.

Memory holds one block at a time: about `size` bytes, or one longer row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.formats import csv_tables
from raytriever.data.formats import file_rows as rows
from raytriever.data.formats.beir import read_ir_rows
from raytriever.data.formats.plan import Part
from raytriever.data.records_and_bad_rows import BadRow, Records, bad_entry

Column = Literal["documents", "queries", "judgements", "negatives"]
COLUMNS: tuple[Column, ...] = ("documents", "queries", "judgements", "negatives")
_READERS: dict[str, Callable[[str, int], Iterator[tuple[int, bytes]]]] = {
    "parquet": rows.read_batches,
    "arrow": rows.read_batches,
    "array": rows.read_elements,
    "ir": read_ir_rows,
}


@dataclass(frozen=True)
class FileBlock:
    """Block of whole rows of a part. `number` is its index in the part; `first_row` its first row's number, from 1.

    For the kinds `parquet` and `arrow`, the payload is an Arrow IPC stream. For all other kinds, such as tables and
    JSON arrays, it is text whose rows end with `\\n`."""

    part: int
    number: int
    first_row: int
    payload: bytes


@dataclass
class Parsed:
    """Parsed block: records, bad rows in the form of `quarantine.jsonl`, and the number of rows that are not blank.
    `marks` has one entry for each good row: the row's number in the file, then the length of each column of `records`
    after this row."""

    records: Records
    bad: list[dict[str, Any]]
    rows: int
    marks: list[tuple[int, int, int, int, int]]

    def rows_of(self, column: Column) -> Int64[ndarray, " records"]:
        """Return, for each record in a column, the number of its row in the file."""
        marks = np.array(self.marks, dtype=np.int64).reshape(-1, 1 + len(COLUMNS))
        return np.repeat(marks[:, 0], np.diff(marks[:, 1 + COLUMNS.index(column)], prepend=0))


def read_blocks(part: Part, index: int, size: int = 1 << 20) -> Iterator[FileBlock]:
    """Yield the blocks of a part in order, as a stream. Raise `DataError` if the file is missing, broken as a whole,
    empty or of another kind.

    Args:
        index: index of the part among all parts. It is stored in each block.
        size: a block ends with the row that reaches this number of bytes. Batches of Parquet have about this size.
    """
    if part.rows is not None:
        pieces = rows.read_object(part.where, size, part.rows)
    elif part.kind in _READERS:
        pieces = _READERS[part.kind](part.where, size)
    else:
        pieces = (csv_tables.read_rows if part.kind == "table" else rows.read_lines)(part.where, size, part.header)
    for number, (first_row, payload) in enumerate(pieces):
        yield FileBlock(index, number, first_row, payload)


def parse_block(part: Part, block: FileBlock) -> Parsed:
    """Return the records of a block. Each bad row is quarantined with its file, number and reason."""
    parsed = Parsed(Records(), [], 0, [])
    columns: list[list[Any]] = [getattr(parsed.records, column) for column in (*COLUMNS, "answers")]
    lengths = [0] * len(columns)
    raws, decode = _rows(part, block)
    for number, raw in enumerate(raws, block.first_row):
        if not raw or (type(raw) is bytes and raw.isspace()):
            continue
        parsed.rows += 1
        try:
            part.parse(decode(raw), parsed.records, part.split or "train")
        except BadRow as bad:
            parsed.bad.append(bad_entry(part.where, number, str(bad), _as_text(raw)))
            for column, length in zip(columns, lengths, strict=True):
                del column[length:]
            continue
        lengths = list(map(len, columns))
        parsed.marks.append((number, *lengths[: len(COLUMNS)]))  # type: ignore[arg-type]
    return parsed


def last_row(part: Part, block: FileBlock) -> int:
    """Return the number of the last row of a block, without parsing its rows."""
    raws, _ = _rows(part, block)
    return max((number for number, raw in enumerate(raws, block.first_row) if raw), default=block.first_row)


def _rows(part: Part, block: FileBlock) -> tuple[Iterable[Any], Callable[[Any], Any]]:
    if part.kind in ("parquet", "arrow"):
        return rows.rows_of(block.payload), _good
    decoders = {"tsv": _columns, "table": csv_tables.row_of}
    return block.payload.split(b"\n"), decoders.get(part.kind, rows.object_of)


def _good(row: Any) -> Any:
    if isinstance(row, BadRow):
        raise row
    return row


def _columns(row: bytes) -> list[str]:
    return rows.text_of(row.rstrip(b"\r")).split("\t")


def _as_text(row: Any) -> bytes:
    if isinstance(row, bytes):
        return row.rstrip(b"\r")
    return json.dumps(row, ensure_ascii=False, default=str).encode(errors="replace")
