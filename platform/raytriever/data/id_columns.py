"""Parquet files whose rows name queries and documents by id: columns held to what they should be, ids made places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy import ndarray

from raytriever.data.parquet import column_names
from raytriever.errors import DataError
from raytriever.storage import disk_errors

TEXT, INTEGER, NUMBER = "text", "integer", "number"


def read_columns(file: Path, columns: Mapping[str, str], remedy: str, may_lack: Collection[str] = ()) -> Any:
    """The columns as a table of Arrow.

    Args:
        file: Parquet.
        columns: their names, and of each whether it is `TEXT`, `INTEGER` or `NUMBER`.
        remedy: told where a column is missing or holds no numbers.
        may_lack: the columns that may be empty in some rows.

    Raises:
        DataError: it is not Parquet, or a column is missing, of another type, or empty somewhere.
    """
    with disk_errors(file, reading=True):
        try:
            names = column_names(str(file))
            for name in columns:
                if name not in names:
                    raise DataError(f"no column {name!r}; there are {', '.join(names) or 'none'}", str(file), remedy)
            schema = pq.read_schema(file)
            for name, wanted in columns.items():
                _check_type(schema.field(name).type, name, wanted, file, remedy)
            table = pq.read_table(file, columns=list(columns))
        except pa.ArrowInvalid as error:
            raise DataError(f"not Parquet ({' '.join(str(error).split())})", str(file), "write it again") from error
    for name in columns:
        if name not in may_lack and table[name].null_count:
            raise DataError(f"column {name!r} is empty in {table[name].null_count} of {len(table)} rows", str(file))
    return table


def places_of(column: Any, known: Any, name: str, file: Path, remedy: Callable[[str], str]) -> ndarray:
    """The place of each value among the known ones; raises `DataError` where one is unknown, for which `remedy` is."""
    found = pc.index_in(column.cast(pa.large_string()), value_set=known)
    if found.null_count:
        first = column.filter(pc.is_null(found))[0].as_py()
        unknown = f"{found.null_count} of {len(column)} rows name an unknown {name}, the first {first!r}"
        raise DataError(unknown, str(file), remedy(first))
    return found.to_numpy()


def _check_type(kind: Any, name: str, wanted: str, file: Path, remedy: str) -> None:
    if wanted == TEXT:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"column {name!r} is {kind}, not string", str(file), "write ids as strings")
    elif not (pa.types.is_integer(kind) or (wanted == NUMBER and pa.types.is_floating(kind))):
        raise DataError(f"column {name!r} is {kind}, not a number", str(file), remedy)
