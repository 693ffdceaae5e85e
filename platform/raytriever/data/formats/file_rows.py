"""Rows of data files, streamed in blocks from JSON Lines, TSV, JSON arrays, Parquet and Arrow.

Text rows end only at a newline byte. Texts may contain U+2028, U+0085 and other characters at which `str.splitlines`
would divide them. Only a file that is one JSON object is loaded into memory as a whole. Parquet columns of extension
types are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Never

from raytriever.core.errors import DataError
from raytriever.core.reading.arrays import broken_parquet, open_arrow_stream, open_parquet
from raytriever.data.data_sources import open_raw, open_stream, reading
from raytriever.data.formats.plan import RowsOf
from raytriever.data.records_and_bad_rows import BadRow

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_rows(file: Path | str) -> Iterator[tuple[int, bytes]]:
    """Yield the rows that are not blank, without their line ends, counted from 1. Raise `DataError` if a file named
    `.gz` is cut off or is not gzip."""
    read = [0]
    with reading(str(file), read), closing(open_stream(str(file))) as stream:
        for number, line in enumerate(stream, start=1):
            read[0] = number
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if not line.isspace():
                yield number, line.rstrip(b"\r\n")


def first_row(where: str) -> bytes:
    """Return the first row that is not blank; empty if there is none. Raise `DataError` for a broken gzip file."""
    rows: Any = numbered_rows(where)
    with closing(rows):
        return bytes(next(rows, (1, b""))[1])


def text_of(row: bytes) -> str:
    """Return a row as text; raises `BadRow`, with the first byte that is not UTF-8."""
    try:
        return row.decode()
    except UnicodeDecodeError as error:
        byte = row[error.start]
        raise BadRow(f"byte 0x{byte:02x} at column {error.start + 1} is not UTF-8") from error


def _no_number(name: str) -> Never:
    raise ValueError(f"{name} is not a number of JSON")


_decode = json.JSONDecoder(parse_constant=_no_number).decode


def object_of(row: bytes) -> dict[str, Any]:
    """Return a row as a JSON object; raises `BadRow` if it is not one. JSON has no `NaN` and no `Infinity`."""
    try:
        parsed = _decode(row.decode())
    except UnicodeDecodeError:
        text_of(row)
        raise
    except json.JSONDecodeError as error:
        line = f" of line {error.lineno}" if error.lineno > 1 else ""
        raise BadRow(f"not JSON ({error.msg} at column {error.colno}{line})") from error
    except (ValueError, RecursionError) as error:
        raise BadRow(f"not JSON ({error})") from error
    if type(parsed) is not dict:
        raise BadRow(f"a JSON object is expected, not {type(parsed).__name__}")
    return parsed


# No text is this long: such a file has no line ends, or was made to exhaust the memory.
MOST_ROW_BYTES = 1 << 28


def whole_object(where: str) -> dict[str, Any]:
    """Return the JSON object that a file holds. Raise `BadRow` if the file is something else, or above 256 MB."""
    with reading(where, [0]), closing(open_stream(where)) as stream:
        raw = stream.read(MOST_ROW_BYTES + 1).removeprefix(BYTE_ORDER_MARK)
    if len(raw) > MOST_ROW_BYTES:
        raise BadRow(f"one JSON object of more than {MOST_ROW_BYTES >> 20} MB")
    return object_of(raw)


def read_object(where: str, size: int, rows: RowsOf) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a file that is one JSON object, in pieces (see `pieces_of`). Raise `DataError` otherwise."""

    def lines() -> Iterator[bytes]:
        try:
            yield from (json.dumps(row).encode() for row in rows(whole_object(where)) or ())
        except (BadRow, RecursionError) as error:
            raise DataError(f"is {error}", where, "write it again as one JSON object below 256 MB") from error

    return pieces_of(enumerate(lines(), 1), size, where, "give questions and passages")


def read_lines(where: str, size: int, header: tuple[str, ...] = ()) -> Iterator[tuple[int, bytes]]:
    """Yield pieces of whole rows, each with the number of its first row, counted from 1.

    A piece has the rows that fit into `size` bytes, or one longer row. If `header` is passed, the first
    row must have these column names; this row is then not part of the pieces. Raise `DataError` if there is no row, a
    row is longer than 256 MB, the header differs, or the gzip is broken."""
    row, seen = 1, False
    for piece in _whole_rows(where, size):
        if row == 1:
            piece = piece.removeprefix(BYTE_ORDER_MARK)
            if header:
                first, _, piece = piece.partition(b"\n")
                actual = first.rstrip(b"\r").decode(errors="replace")
                if actual.split("\t") != list(header):
                    raise wrong_header(where, repr(actual[:80]), header)
                row = 2
        if piece and not piece.isspace():
            seen = True
            yield row, piece
        row += piece.count(b"\n")
    if row == 1 and header:
        raise wrong_header(where, "'' (the file is empty)", header)
    if not seen and header:
        raise DataError("has no judgements", where, f"give rows of {'<TAB>'.join(header)}")
    if not seen:
        what = "has no rows: the file is empty" if row == 1 else "has no rows"
        raise DataError(what, where, "give one JSON object a line")


def _whole_rows(where: str, size: int) -> Iterator[bytes]:
    rows = [0]
    begun: list[bytes] = []  # blocks of a row that has not ended; they are joined when it ends
    rest = b""
    with reading(where, rows), closing(open_stream(where)) as stream:
        while len(rest := rest + _read(stream, size - len(rest))) == size:
            cut = rest.rfind(b"\n") + 1
            begun.append(rest[:cut] if cut else rest)
            rest = rest[cut:] if cut else b""
            if cut:
                piece = b"".join(begun)
                begun.clear()
                rows[0] += piece.count(b"\n")
                yield piece
            elif sum(map(len, begun)) > MOST_ROW_BYTES:
                raise _too_long(where, rows[0] + 1)
    if begun or rest:
        yield b"".join([*begun, rest])


def _too_long(where: str, row: int) -> DataError:
    return DataError(f"the row is longer than {MOST_ROW_BYTES >> 20} MB", f"{where} row {row}", "cut it")


def _read(stream: Any, size: int) -> bytes:
    """Read `size` bytes, or fewer at the end of the file. One `read` may return fewer, so it is repeated."""
    blocks = []
    while size and (block := stream.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def wrong_header(where: str, actual: str, header: Sequence[str], separator: str = "<TAB>") -> DataError:
    """Return the error of a file whose first row does not have these column names."""
    return DataError(f"the header is {actual}", f"{where} row 1", f"it must be {separator.join(header)}")


# Matches up to the next bracket outside a string, or up to the opening quote of a string that ends in a later block.
_SIGN = re.compile(rb'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}"])?', re.DOTALL)
_BEGIN = 1 << 16
_BETWEEN = b", \t\r\n"
_NEWLINES = bytes.maketrans(b"\r\n", b"  ")


def read_elements(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the objects of a JSON array as lines, in pieces (see `pieces_of`). Raise `DataError` if the file is not an
    array, is cut off or empty, or is a broken gzip file."""
    return pieces_of(enumerate(_elements(where, size), 1), size, where, "give an array of JSON objects")


def pieces_of(rows: Iterable[tuple[int, bytes]], size: int, where: str, remedy: str) -> Iterator[tuple[int, bytes]]:
    """Yield numbered rows in pieces of at least `size` bytes (the last may be shorter), each with the number of its
    first row. A piece has a blank line for each row number that is missing. Raise `DataError` if there is no row."""
    first, lines, length = 0, list[bytes](), 0
    for number, row in rows:
        first = first if lines else number
        lines += [b""] * (number - first - len(lines))
        lines.append(row)
        length += len(row) + 1
        if length >= size:
            yield first, b"\n".join(lines) + b"\n"
            lines, length = [], 0
    if lines:
        yield first, b"\n".join(lines) + b"\n"
    elif not first:
        raise DataError("has no rows", where, remedy)


def _elements(where: str, size: int) -> Iterator[bytes]:
    rows, buffer, at, start, depth = [0], b"", 0, 0, 0
    with reading(where, rows), closing(open_stream(where)) as stream:
        buffer = stream.read(max(size, _BEGIN)).removeprefix(BYTE_ORDER_MARK)
        if not buffer:
            raise DataError("has no rows: the file is empty", where, "give an array of JSON objects")
        begin = buffer.lstrip()[:40]
        if not begin.startswith(b"["):
            what = f"begins with {begin.decode(errors='replace')!r}, not with a JSON array"
            raise DataError(what, where, "give an array of objects, or one object a line and name it .jsonl")
        while True:
            for sign in _SIGN.finditer(buffer, at):
                byte = sign[1]
                at = sign.end() if byte != b'"' else sign.start(1)
                if not byte or byte == b'"':
                    break
                depth += 1 if byte in b"[{" else -1
                if (depth == 1 and byte in b"]}") or depth == 0:
                    row = buffer[start : at - (depth == 0)].lstrip(_BETWEEN) if start else b""
                    start = at
                    if row.strip(_BETWEEN):
                        rows[0] += 1
                        yield row.translate(_NEWLINES)
                if depth == 0:
                    return
                start = start or at  # the position after the bracket that opens the array
            if len(buffer) - start > MOST_ROW_BYTES:
                raise _too_long(where, rows[0] + 1)
            block = stream.read(max(size, len(buffer) - start))
            if not block:
                raise DataError(f"the JSON array is cut off after row {rows[0]}", where, "copy it again")
            buffer, at, start = buffer[start - 1 :] + block, at - start + 1, 1


_BATCH_ROWS = 65_536  # maximum number of rows of a batch


def column_names(where: str) -> list[str]:
    """Return the column names of a Parquet or Arrow file; raises the errors of `read_batches`."""
    with reading(where, [0]), closing(open_raw(where)) as stream:
        if _is_arrow(where):
            return [str(name) for name in open_arrow_stream(where, stream).schema.names]
        return [str(name) for name in open_parquet(where, stream).schema_arrow.names]


def read_batches(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield batches of Parquet or of an Arrow stream, each with the number of its first row, counted from 1. A batch
    has about `size` uncompressed bytes. Raise `DataError` if the file is empty, broken or of another kind, or has a
    column of an extension type."""
    import pyarrow as pa

    read, waiting, is_stream = [0], list[Any](), _is_arrow(where)
    with reading(where, read), closing(open_raw(where)) as stream:
        try:
            for batch in open_arrow_stream(where, stream) if is_stream else _parquet_batches(where, stream, size):
                if is_stream:
                    batch.validate(full=True)
                waiting.append(batch)
                if not is_stream or sum(batch.nbytes for batch in waiting) >= size:
                    yield read[0] + 1, _packed(waiting)
                    read[0] += sum(batch.num_rows for batch in waiting)
                    waiting = []
        except (pa.ArrowException, OSError) as error:
            raise broken_parquet(where, error, f" after row {read[0]}") from error
    if waiting:
        yield read[0] + 1, _packed(waiting)


def _parquet_batches(where: str, stream: Any, size: int) -> Iterator[Any]:
    file = open_parquet(where, stream)
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    bytes_a_row = sum(group.total_byte_size for group in groups) / max(1, file.metadata.num_rows)
    rows = min(_BATCH_ROWS, max(1, int(size / max(1.0, bytes_a_row))))
    yield from file.iter_batches(batch_size=rows, use_threads=False)


def _is_arrow(where: str) -> bool:
    return where.split("?")[0].endswith(".arrow")


def _packed(batches: list[Any]) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def rows_of(payload: bytes) -> list[dict[str, Any] | BadRow]:
    """Return the rows of a batch. A row that is not UTF-8 is replaced by a `BadRow` with the reason."""
    import pyarrow as pa

    table = pa.ipc.open_stream(payload).read_all()  # noqa: TID251 - a batch of our own, of checked columns
    try:
        rows: list[dict[str, Any] | BadRow] = table.to_pylist()
    except UnicodeDecodeError:
        rows = [_row(table, index) for index in range(len(table))]
    return rows


def _row(table: Any, index: int) -> dict[str, Any] | BadRow:
    row = {}
    for name in table.column_names:
        try:
            row[name] = table[name][index].as_py()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            return BadRow(f'"{name}": byte 0x{byte:02x} at position {error.start + 1} is not UTF-8')
    return row
