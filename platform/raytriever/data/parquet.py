"""Parquet in batches of rows, each an Arrow IPC stream. Extension types are refused: they may hold pickled objects.

Reading such a column would run what is pickled in it, and with some types so does opening the file, because pyarrow
makes the types that Arrow's own schema in the footer names.

1. The footer is read with that schema under another key, which pyarrow passes over; columns have Parquet's types.
2. The schema is looked through with its extension names under another key.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

from raytriever.data.files import open_raw, reading
from raytriever.data.quarantine import BadRow
from raytriever.errors import DataError

_MAGIC = b"PAR1"
_SCHEMA, _PASSED_OVER = b"ARROW:schema", b"ARROW:schem_"
_NAME, _UNKNOWN = b"ARROW:extension:name", b"ARROW:extension:nam_"
_BATCH_ROWS = 65_536


def column_names(where: str) -> list[str]:
    """The names of a file's columns; raises like `read_batches`."""
    with reading(where, [0]), closing(open_raw(where)) as stream:
        return [str(name) for name in _opened(where, stream).schema_arrow.names]


def read_batches(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Batches of about `size` bytes unpacked, each with the number of its first row, counted from 1.

    Raises:
        DataError: the file is empty, broken or no Parquet, or a column is of an extension type.
    """
    import pyarrow as pa

    read = [0]
    with reading(where, read), closing(open_raw(where)) as stream:
        file = _opened(where, stream)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        bytes_a_row = sum(group.total_byte_size for group in groups) / max(1, file.metadata.num_rows)
        rows = min(_BATCH_ROWS, max(1, int(size / max(1.0, bytes_a_row))))
        try:
            for batch in file.iter_batches(batch_size=rows, use_threads=False):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                yield read[0] + 1, sink.getvalue().to_pybytes()
                read[0] += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise _broken(where, error, f" after row {read[0]}") from error


def rows_of(payload: bytes) -> list[dict[str, Any] | BadRow]:
    """The rows of a batch; in place of a row that is not UTF-8, why it is bad."""
    import pyarrow as pa

    table = pa.ipc.open_stream(payload).read_all()
    try:
        rows: list[dict[str, Any] | BadRow] = table.to_pylist()
    except UnicodeDecodeError:
        rows = [_row(table, place) for place in range(len(table))]
    return rows


def _row(table: Any, place: int) -> dict[str, Any] | BadRow:
    row = {}
    for name in table.column_names:
        try:
            row[name] = table[name][place].as_py()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            return BadRow(f'"{name}": byte 0x{byte:02x} at place {error.start + 1} is not UTF-8')
    return row


def _opened(where: str, stream: Any) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    if not stream.size():
        raise DataError("no row in it, the file is empty", where, "write it again")
    try:
        metadata = parquet.read_metadata(pa.BufferReader(_footer(stream)))
        _refuse_extensions(where, (metadata.metadata or {}).get(_PASSED_OVER, b""))
        stream.seek(0)
        return parquet.ParquetFile(
            stream, metadata=metadata, buffer_size=1 << 20, pre_buffer=False, arrow_extensions_enabled=False
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _broken(where, error) from error


def _footer(stream: Any) -> bytes:
    """A Parquet file of the footer alone, with Arrow's schema under a key that pyarrow passes over."""
    size = stream.size()
    stream.seek(max(0, size - 8))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 12:
        raise ValueError("no footer at its end")
    stream.seek(size - 8 - length)
    return _MAGIC + cast(bytes, stream.read(length)).replace(_SCHEMA, _PASSED_OVER) + cast(bytes, tail)


def _refuse_extensions(where: str, encoded: bytes) -> None:
    """Raise `DataError` naming the first column of an extension type in a schema as Arrow keeps it in Parquet."""
    import pyarrow as pa

    schema = base64.b64decode(encoded)
    if _NAME not in schema:
        return
    fields = list(pa.ipc.read_schema(pa.py_buffer(schema.replace(_NAME, _UNKNOWN))))
    while fields:
        field = fields.pop(0)
        if found := (field.metadata or {}).get(_UNKNOWN):
            raise DataError(
                f"column {field.name!r} is of the extension type {found.decode(errors='replace')!r}, which may hold "
                "pickled objects, and is not read",
                where,
                "write it again with plain columns of strings, numbers and lists",
            )
        fields += [field.type.field(index) for index in range(field.type.num_fields)]


def _broken(where: str, error: Exception, after: str = "") -> DataError:
    told = " ".join(str(error).split())[:200]
    return DataError(f"the Parquet is broken{after} ({told})", where, "copy or write it again")
