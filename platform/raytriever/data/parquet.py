"""Parquet in batches of rows, each an Arrow IPC stream; columns of extension types are refused (`open_parquet`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from raytriever.data.files import open_raw, reading
from raytriever.data.quarantine import BadRow
from raytriever.reading.arrays import broken_parquet, open_parquet

_BATCH_ROWS = 65_536


def column_names(where: str) -> list[str]:
    """The names of a file's columns; raises like `read_batches`."""
    with reading(where, [0]), closing(open_raw(where)) as stream:
        return [str(name) for name in open_parquet(where, stream).schema_arrow.names]


def read_batches(where: str, size: int) -> Iterator[tuple[int, bytes]]:
    """Batches of about `size` bytes unpacked, each with the number of its first row, counted from 1.

    Raises:
        DataError: the file is empty, broken or no Parquet, or a column is of an extension type.
    """
    import pyarrow as pa

    read = [0]
    with reading(where, read), closing(open_raw(where)) as stream:
        file = open_parquet(where, stream)
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
            raise broken_parquet(where, error, f" after row {read[0]}") from error


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
