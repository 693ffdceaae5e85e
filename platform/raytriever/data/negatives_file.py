"""A negatives table on disk: Parquet, with the ids of queries and documents, so that it outlives positions.

A table that was written here is a committed directory (`storage`) of `part-00000.parquet` and so on; a single Parquet
file with the same columns, whoever made it, is read as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.negatives_table import NegativesTable
from raytriever.data.parquet import column_names
from raytriever.data.records import ORIGINS
from raytriever.errors import DataError
from raytriever.options import did_you_mean
from raytriever.storage import committed_directory, disk_errors, read_manifest

PART_ROWS = 1 << 22
COLUMNS = ("query", "document", "origin", "rank", "score", "round")
_REMEDY = f"the columns are {', '.join(COLUMNS)}"


def write_negatives(
    path: Path | str,
    table: NegativesTable,
    dataset: RetrievalDataset,
    meta: Mapping[str, Any] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Write a table of a data set, and in its manifest `meta`, to the directory `path`; raises `StorageError`, see
    `committed_directory`."""
    query_ids, document_ids = _ids(dataset.queries.ids), _ids(dataset.documents.ids)
    queries = table.queries
    told = {"dataset": dataset.digest, "rows": len(table), **(meta or {})}
    with committed_directory(path, told, replace=replace) as aside:
        for part, start in enumerate(range(0, max(1, len(table)), PART_ROWS)):
            rows = slice(start, start + PART_ROWS)
            columns = {
                "query": query_ids.take(pa.array(queries[rows])),
                "document": document_ids.take(pa.array(table.documents[rows])),
                "origin": pa.DictionaryArray.from_arrays(pa.array(table.origins[rows]), pa.array(ORIGINS)),
                "rank": pa.array(table.ranks[rows]),
                "score": pa.array(table.scores[rows]),
                "round": pa.array(table.rounds[rows]),
            }
            pq.write_table(pa.table(columns), aside / f"part-{part:05d}.parquet", compression="zstd")


def read_negatives(path: Path | str, dataset: RetrievalDataset) -> NegativesTable:
    """Read a table for a data set.

    Args:
        path: a directory that `write_negatives` made, or one Parquet file. An empty score is none.
        dataset: has every query and document that is named.

    Raises:
        DataError: nothing there; a column is missing, of another type, an extension type (such columns may hold
            pickles, which are never loaded) or has holes; rows name unknown queries, documents or origins.
        StorageError: a directory that was never completed, or is torn.
    """
    path = Path(path)
    if not path.exists():
        raise DataError("there is no negatives table", str(path), "give the directory or Parquet file of one")
    if path.is_dir():
        files = [path / name for name in sorted(read_manifest(path)["files"]) if name.endswith(".parquet")]
    else:
        files = [path]
    query_ids, document_ids = _ids(dataset.queries.ids), _ids(dataset.documents.ids)
    parts = [_part(file, query_ids, document_ids) for file in files]
    if not parts:
        raise DataError("the directory holds no Parquet file", str(path), "give the directory of a negatives table")
    return NegativesTable.of(dataset, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def _part(file: Path, query_ids: Any, document_ids: Any) -> tuple[ndarray, ...]:
    """A file's rows as positions and numbers, in the order of `COLUMNS`."""
    with disk_errors(file):
        try:
            _check_columns(column_names(str(file)), file)
            _check_types(pq.read_schema(file), file)
            table = pq.read_table(file, columns=list(COLUMNS))
        except pa.ArrowInvalid as error:
            raise DataError(f"not Parquet ({' '.join(str(error).split())})", str(file), "write it again") from error
    for name in COLUMNS:
        if name != "score" and table[name].null_count:
            raise DataError(f"column {name!r} is empty in {table[name].null_count} of {len(table)} rows", str(file))
    for name in ("rank", "round"):
        numbers = table[name].to_numpy()
        outside = numbers[(numbers < 0) | (numbers > np.iinfo(np.int32).max)]
        if len(outside):
            raise DataError(f"{name} {outside[0]} is out of range", str(file), "count from 0, below 2^31")
    return (
        _places(table["query"], query_ids, "query", file),
        _places(table["document"], document_ids, "document", file),
        _places(table["origin"], pa.array(ORIGINS, pa.large_string()), "origin", file),
        table["rank"].to_numpy(),
        table["score"].to_numpy(),
        table["round"].to_numpy(),
    )


def _check_columns(names: Sequence[str], file: Path) -> None:
    for name in COLUMNS:
        if name not in names:
            raise DataError(f"no column {name!r}; there are {', '.join(names) or 'none'}", str(file), _REMEDY)


def _check_types(schema: Any, file: Path) -> None:
    for name in COLUMNS[:3]:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"column {name!r} is {kind}, not string", str(file), "write ids as strings")
    for name in COLUMNS[3:]:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or (name == "score" and pa.types.is_floating(kind))):
            raise DataError(f"column {name!r} is {kind}, not a number", str(file), _REMEDY)


def _places(column: Any, known: Any, name: str, file: Path) -> ndarray:
    """The place of each value among the known ones."""
    found = pc.index_in(column.cast(pa.large_string()), value_set=known)
    if found.null_count:
        first = column.filter(pc.is_null(found))[0].as_py()
        raise DataError(
            f"{found.null_count} of {len(column)} rows name an unknown {name}, the first {first!r}",
            str(file),
            did_you_mean(first, ORIGINS) if name == "origin" else "give the table of this data set",
        )
    return found.to_numpy()


def _ids(ids: Sequence[str]) -> Any:
    return (
        pa.array(ids, pa.large_string(), size=len(ids))
        if isinstance(ids, list)
        else pa.array(list(ids), pa.large_string())
    )
