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
import pyarrow.parquet as pq
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.id_columns import INTEGER, NUMBER, TEXT, places_of, read_columns
from raytriever.data.negatives_table import NegativesTable
from raytriever.data.records import ORIGINS
from raytriever.errors import DataError
from raytriever.options import did_you_mean
from raytriever.paths import NEGATIVES
from raytriever.storage import committed_directory, read_manifest

PART_ROWS = 1 << 22
COLUMNS = ("query", "document", "origin", "rank", "score", "round")
_KINDS = dict(zip(COLUMNS, (TEXT, TEXT, TEXT, INTEGER, NUMBER, INTEGER), strict=True))
_REMEDY = f"the columns are {', '.join(COLUMNS)}"


@activity("writing the negatives table")
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
        raise NEGATIVES.error_of_missing(str(path))
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
    table = read_columns(file, _KINDS, _REMEDY, may_lack=["score"])
    for name in ("rank", "round"):
        numbers = table[name].to_numpy()
        outside = numbers[(numbers < 0) | (numbers > np.iinfo(np.int32).max)]
        if len(outside):
            raise DataError(f"{name} {outside[0]} is out of range", str(file), "count from 0, below 2^31")
    origins = pa.array(ORIGINS, pa.large_string())
    return (
        places_of(table["query"], query_ids, "query", file, _of_another),
        places_of(table["document"], document_ids, "document", file, _of_another),
        places_of(table["origin"], origins, "origin", file, lambda first: did_you_mean(first, ORIGINS)),
        table["rank"].to_numpy(),
        table["score"].to_numpy(),
        table["round"].to_numpy(),
    )


def _of_another(first: str) -> str:
    return "give the table of this data set"


def _ids(ids: Sequence[str]) -> Any:
    return (
        pa.array(ids, pa.large_string(), size=len(ids))
        if isinstance(ids, list)
        else pa.array(list(ids), pa.large_string())
    )
