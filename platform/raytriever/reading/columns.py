"""Parquet files whose rows name queries and documents by id: checks of the columns, and positions of the ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from numpy import ndarray

from raytriever.errors import DataError
from raytriever.reading.arrays import broken_parquet, open_parquet
from raytriever.reading.regular import check_regular

TEXT, INTEGER, NUMBER = "text", "integer", "number"


def read_columns(file: Path, columns: Mapping[str, str], remedy: str, may_lack: Collection[str] = ()) -> Any:
    """Return the columns of a Parquet file as an Arrow table, each of the kind `TEXT`, `INTEGER` or `NUMBER`.

    Only those that `may_lack` names may hold nulls.

    Raises:
        DataError: the file is not Parquet, or a column is missing, has another type or an extension type, or nulls.
        OSError: the file cannot be opened.
    """
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
        if name not in may_lack and table[name].null_count:
            raise DataError(f"column {name!r} is empty in {table[name].null_count} of {len(table)} rows", str(file))
    return table


def positions_of(column: Any, ids: Any, name: str, file: Path, remedy: Callable[[str], str]) -> ndarray:
    """Return the position of each value among the known ones; raises `DataError` with `remedy` for an unknown one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    positions = pc.index_in(column.cast(pa.large_string()), value_set=ids)
    if positions.null_count:
        first = column.filter(pc.is_null(positions))[0].as_py()
        unknown = f"{positions.null_count} of {len(column)} rows name an unknown {name}, the first {first!r}"
        raise DataError(unknown, str(file), remedy(first))
    return positions.to_numpy()


def _check_type(kind: Any, name: str, expected: str, file: Path, remedy: str) -> None:
    import pyarrow as pa

    if expected == TEXT:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"column {name!r} is {kind}, not string", str(file), "write ids as strings")
    elif not (pa.types.is_integer(kind) or (expected == NUMBER and pa.types.is_floating(kind))):
        raise DataError(f"column {name!r} is {kind}, not a number", str(file), remedy)
