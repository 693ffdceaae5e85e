"""Checked readers of numpy arrays, Arrow and Parquet columns, and safetensors: exact types and shapes, no pickles.

A memory-mapped array or column stays on the disk. To check its type and shape, only its header is read.
`read_columns` and `positions_of` read Parquet files whose rows name queries and documents by id."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from raytriever.core.errors import DataError, StorageError, UserError
from raytriever.core.reading.json_and_yaml import CHANGED, Mismatch, checked
from raytriever.core.reading.regular_files import check_regular, open_regular

if TYPE_CHECKING:
    from numpy import ndarray

Shape = tuple[int | None, ...]
_MOST_UNPACKED = 1 << 32  # maximum bytes of an array; an archive may unpack to a thousand times its size

_ARROW, _PARQUET = b"ARROW1", b"PAR1"
_CONTINUED, _MOST_SCHEMA = b"\xff" * 4, 1 << 26  # bytes before each Arrow message; maximum bytes of a schema
_SCHEMA, _SCHEMA_HIDDEN = b"ARROW:schema", b"ARROW:schem_"
_EXTENSION, _EXTENSION_HIDDEN = b"ARROW:extension:name", b"ARROW:extension:nam_"


def read_array(
    file: Path, dtypes: Collection[str], shape: Shape, remedy: str, mapped: Literal["r", "c"] | None = None
) -> ndarray:
    """Read a `.npy` file that `numpy.save` wrote. Raise `StorageError` if the file is missing, its header is broken,
    it has another type or shape, or its size does not fit the header.

    Args:
        dtypes: the types that the array may have, such as `int64`; `str` for texts of any length.
        shape: the length of each dimension; None for any length.
        mapped: `r` to map the file read-only, `c` to map it copy-on-write, None to read it.
    """
    import numpy as np

    with checked(file, remedy), _opened(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        dtype, lengths = _npy_header(stream, dtypes, shape)
        start, count = stream.tell(), prod(lengths)
        _check_size(size - start, dtype, lengths)
        if mapped is None or not count:
            return np.fromfile(stream, dtype, count).reshape(lengths)
        return np.memmap(file, dtype, mapped, start, lengths)


def read_arrays(file: Path, arrays: Mapping[str, tuple[Collection[str], Shape]], remedy: str) -> dict[str, ndarray]:
    """Read the named arrays of a `.npz` file that `numpy.savez` wrote. Their types and shapes are checked. Raise
    `StorageError` if the file is missing or damaged, or if an array is missing or has another type or shape.
    """
    import zipfile
    import zlib

    import numpy as np

    contents = {}
    with checked(file, remedy), _opened(file) as packed:
        try:
            archive = zipfile.ZipFile(packed)
            for name, (dtypes, shape) in arrays.items():
                about = archive.getinfo(f"{name}.npy")
                with checked(f"{file}: {name}", remedy), archive.open(about) as stream:
                    dtype, lengths = _npy_header(cast(BinaryIO, stream), dtypes, shape)
                    if about.file_size > _MOST_UNPACKED:
                        raise Mismatch(f"has {about.file_size:,} bytes, more than {_MOST_UNPACKED:,}")
                    values = bytearray(stream.read())
                    _check_size(len(values), dtype, lengths)
                contents[name] = np.frombuffer(values, dtype).reshape(lengths)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise Mismatch(f"{CHANGED}: {error}") from error
        except KeyError as error:
            raise Mismatch(f"{CHANGED}: there is no array {name!r}") from error
    return contents


def read_arrow(file: Path, columns: Mapping[str, str], remedy: str, full: bool = False) -> Any:
    """Map the columns of an uncompressed Arrow file of one record batch as a table; no bytes are copied. Raise
    `StorageError` if the file is missing or not of this kind, or if a column has another type, nulls, invalid values or
    an extension type (such columns may hold pickled objects).

    Args:
        columns: Arrow type of each column; the file must have exactly these columns, in this order.
        full: True to validate every offset and every text too. This reads the whole file: about 1 s for 1 GB. False
            to trust the offsets within a column; the time then does not depend on the number of rows.
    """
    import pyarrow as pa

    with checked(file, remedy), _arrow_errors():
        _opened(file).close()
        whole = pa.memory_map(str(file)).read_buffer()
        _check_schema(whole, columns)
        with pa.ipc.open_file(whole) as reader:
            if reader.num_record_batches != 1:
                raise Mismatch(f"{CHANGED}: it has {reader.num_record_batches} record batches, expected one")
            table = reader.read_all()
        table.validate(full=full)
        for name in columns:
            if table[name].null_count:
                raise Mismatch(f"column {name!r} is empty in {table[name].null_count} rows")
            for buffer in table[name].chunk(0).buffers():
                end = whole.address + whole.size
                if buffer is not None and buffer.size and not whole.address <= buffer.address < end:
                    raise Mismatch(f"column {name!r} is compressed")
    return table


def open_parquet(where: str, stream: Any) -> Any:
    """Open a Parquet file, given as a seekable `pyarrow.NativeFile`, as a `pyarrow.parquet.ParquetFile`.

    The Arrow schema in the footer is hidden from pyarrow, which would build the extension types that it names.
    Raise `DataError` if the file is empty, broken or not Parquet, or if a column has an extension type."""
    import pyarrow as pa
    from pyarrow import parquet

    if not stream.size():
        raise DataError("has no rows: the file is empty", where, "write it again")
    try:
        metadata = parquet.read_metadata(pa.BufferReader(_parquet_footer(stream)))
        schema = base64.b64decode((metadata.metadata or {}).get(_SCHEMA_HIDDEN, b""))
        if _EXTENSION in schema:
            fields = list(pa.ipc.read_schema(pa.py_buffer(schema.replace(_EXTENSION, _EXTENSION_HIDDEN))))
            if extension := _first_extension(fields):
                raise DataError(
                    f"column {extension[0]!r} is of the extension type {extension[1]!r}; such columns may hold pickled "
                    "objects, so the file is not read",
                    where,
                    "write it again with plain columns of strings, numbers and lists",
                )
        stream.seek(0)
        return parquet.ParquetFile(
            stream, metadata=metadata, buffer_size=1 << 20, pre_buffer=False, arrow_extensions_enabled=False
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken_parquet(where, error) from error


def open_arrow_stream(where: str, stream: Any) -> Any:
    """Open an Arrow stream, as `datasets` writes to the disk, as a `pyarrow.RecordBatchStreamReader`. Raise `DataError`
    if the stream is empty or broken, if it is not an Arrow stream, or if a column has an extension type."""
    import pyarrow as pa

    begin = stream.read(8)
    length = int.from_bytes(begin[4:], "little", signed=True)
    schema = stream.read(length) if begin[:4] == _CONTINUED and 0 < length < _MOST_SCHEMA else b""
    if _EXTENSION in schema:
        what = "has a column of an extension type; such columns may hold pickled objects, so the file is not read"
        raise DataError(what, where, "save it again with plain columns of strings, numbers and lists")
    if len(schema) != length or not schema:
        raise DataError("is not an Arrow stream of the library `datasets`", where, "copy it again, or save it again")
    stream.seek(0)
    try:
        return pa.ipc.open_stream(stream)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise broken_parquet(where, error) from error


def broken_parquet(where: str, error: Exception, after: str = "") -> DataError:
    """Return the error for a Parquet or Arrow file that pyarrow cannot read; `after` says how far it was read."""
    reason = " ".join(str(error).split())[:200]
    kind = "Arrow" if where.endswith(".arrow") else "Parquet"
    return DataError(f"the {kind} file is broken{after} ({reason})", where, "copy or write it again")


@contextmanager
def open_tensors(file: Path, remedy: str, error: type[UserError] = StorageError) -> Iterator[Any]:
    """Open a safetensors file with `safetensors.safe_open` for torch.

    Raises:
        UserError: of the class `error`: the header is broken, or does not fit the size of the file.
        FileNotFoundError: there is no such file.
    """
    from safetensors import SafetensorError, safe_open

    with checked(file, remedy, error):
        check_regular(file)  # safetensors reports an unreadable file as missing
        try:
            with safe_open(file, framework="pt") as tensors:
                yield tensors
        except SafetensorError as reason:
            raise Mismatch(f"{CHANGED}: {' '.join(str(reason).split())[:200]}") from reason


def _opened(file: Path) -> BinaryIO:
    try:
        return open_regular(file)
    except FileNotFoundError:
        raise Mismatch("is missing") from None


def _npy_header(stream: BinaryIO, dtypes: Collection[str], shape: Shape) -> tuple[Any, tuple[int, ...]]:
    """Read the header of a `.npy` file; return the array's type and shape. Raise `Mismatch` if they are not allowed."""
    import numpy as np
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        actual, is_fortran, dtype = read(stream)
        if is_fortran or not all(0 <= length < 1 << 63 for length in actual) or dtype.names or dtype.subdtype:
            raise ValueError(actual)
    except (OSError, MemoryError):
        raise
    except Exception:  # numpy's parser raises many kinds of errors, such as TokenError
        raise Mismatch(f"{CHANGED}: it has no header of a plain array") from None
    if re.sub(r"^<U\d+$", "<U0", dtype.str) not in {np.dtype(name).str for name in dtypes}:
        raise Mismatch(f"holds values of type {dtype.str!r}, expected {' or '.join(dtypes)}")
    if len(actual) != len(shape) or any(want not in (None, have) for want, have in zip(shape, actual, strict=True)):
        expected = " x ".join("any" if length is None else str(length) for length in shape)
        raise Mismatch(f"has the shape {' x '.join(map(str, actual))}, expected {expected}")
    return dtype, actual


def _check_size(size: int, dtype: Any, lengths: tuple[int, ...]) -> None:
    if size != (needed := prod(lengths) * dtype.itemsize):
        raise Mismatch(f"has {size:,} bytes of values, but its shape {lengths} needs {needed:,}")


def _check_schema(whole: Any, columns: Mapping[str, str]) -> None:
    """Check the schema in the footer of an Arrow file. pyarrow then reads no batch and builds no extension type."""
    import pyarrow as pa

    tail = bytes(whole[max(0, whole.size - 10) :])
    length = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _ARROW or not 0 < length <= whole.size - 18:
        raise Mismatch(f"{CHANGED}: it does not end with the footer of an Arrow file")
    footer = bytes(whole[whole.size - 10 - length : whole.size - 10]).replace(_EXTENSION, _EXTENSION_HIDDEN)
    with pa.ipc.open_file(pa.BufferReader(_ARROW + bytes(2) + footer + tail)) as reader:
        fields = list(reader.schema)
    if [field.name for field in fields] != list(columns):
        actual = ", ".join(repr(field.name) for field in fields) or "none"
        raise Mismatch(f"has the columns {actual}, expected {', '.join(map(repr, columns))}")
    for field in fields:
        extension = _first_extension([field])
        kind = f"the extension type {extension[1]!r}" if extension else f"the type {str(field.type)!r}"
        if extension or str(field.type) != columns[field.name]:
            raise Mismatch(f"column {field.name!r} has {kind}, expected {columns[field.name]!r}")


def _first_extension(fields: Sequence[Any]) -> tuple[str, str] | None:
    """Return the name and the type of the first field with `_EXTENSION_HIDDEN` in its metadata, or None."""
    waiting = list(fields)
    while waiting:
        field = waiting.pop(0)
        if extension := (field.metadata or {}).get(_EXTENSION_HIDDEN):
            return field.name, extension.decode(errors="replace")
        waiting += [field.type.field(index) for index in range(field.type.num_fields)]
    return None


def _parquet_footer(stream: Any) -> bytes:
    """Return a Parquet file with only the footer. Its Arrow schema gets another key, which pyarrow does not read."""
    size = stream.size()
    stream.seek(max(0, size - 8))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _PARQUET or length > size - 12:
        raise ValueError("the file does not end with a footer")
    stream.seek(size - 8 - length)
    return _PARQUET + cast(bytes, stream.read(length)).replace(_SCHEMA, _SCHEMA_HIDDEN) + cast(bytes, tail)


@contextmanager
def _arrow_errors() -> Iterator[None]:
    """Convert pyarrow's errors about a broken file, also `OSError` without `errno`, to a `Mismatch`."""
    import pyarrow as pa

    try:
        yield
    except Mismatch:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise Mismatch(f"{CHANGED}: {' '.join(str(error).split())[:200]}") from error


TEXT, INTEGER, NUMBER = "text", "integer", "number"


def read_columns(file: Path, columns: Mapping[str, str], remedy: str, may_lack: Collection[str] = ()) -> Any:
    """Return the columns of a Parquet file as an Arrow table. Each column is `TEXT`, `INTEGER` or `NUMBER`.

    Only the columns in `may_lack` may hold nulls. Raise `DataError` if the file is not Parquet, or if a column is
    missing, has nulls, or has another type or an extension type. Raise `OSError` if the file cannot be opened."""
    import pyarrow as pa

    check_regular(file)
    with pa.OSFile(str(file)) as stream:
        parquet = open_parquet(str(file), stream)
        schema = parquet.schema_arrow
        for name, kind in columns.items():
            if schema.names.count(name) != 1:
                columns_found = ", ".join(schema.names) or "none"
                raise DataError(f"no column {name!r}; there are {columns_found}", str(file), remedy)
            _check_type(schema.field(name).type, name, kind, file, remedy)
        try:
            table = parquet.read(columns=list(columns))
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise broken_parquet(str(file), error) from error
    for name in columns:
        if name not in may_lack and (nulls := table[name].null_count):
            raise DataError(f"column {name!r} is empty in {nulls} of {len(table)} rows", str(file), "fill these cells")
    return table


def positions_of(column: Any, ids: Any, name: str, file: Path, remedy: Callable[[str], str]) -> ndarray:
    """Return, for each value of a column, its index in `ids`; raises `DataError` with `remedy` for an unknown value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    positions = pc.index_in(column.cast(pa.large_string()), value_set=ids)
    if positions.null_count:
        first = column.filter(pc.is_null(positions))[0].as_py()
        unknown = f"{positions.null_count} of {len(column)} rows name an unknown {name}; the first is {first!r}"
        raise DataError(unknown, str(file), remedy(first))
    return positions.to_numpy()


def _check_type(kind: Any, name: str, expected: str, file: Path, remedy: str) -> None:
    import pyarrow as pa

    if expected == TEXT:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"column {name!r} has the type {kind}, not string", str(file), "write ids as strings")
    elif not (pa.types.is_integer(kind) or (expected == NUMBER and pa.types.is_floating(kind))):
        raise DataError(f"column {name!r} has the type {kind}, not a number", str(file), remedy)
