"""Hard negatives of queries, in memory and on disk: each document, its origin (such as BM25) and its rank.

In memory each column is one array. The rows of a query are adjacent, hardest first. Ten million rows need a quarter of
a gigabyte. `NegativesTable.of` builds every table, by two rules:

1. If a document is relevant to a query or to an equal query, neither it nor a copy of it (`data.hashed_ids`) is a
   negative of the query. Such rows are left out and counted.
2. A document occurs once in the rows of a query. If two origins found it, the row has the origin with the better
   rank; at equal ranks, the first in `ORIGINS`. So no group has a document twice, and fractions by origin are
   exact.

On disk a table names queries and documents by id, so it stays valid when positions change. It is a committed
directory (`store`) of files `part-00000.parquet` and so on, or a single Parquet file with the same columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int8, Int32, Int64
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.core.paths import NEGATIVES, PathKind
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import INTEGER, NUMBER, TEXT, positions_of, read_columns
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.core.unknown_names import did_you_mean
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.records_and_bad_rows import ORIGINS

TABLE_COLUMNS = ("documents", "origins", "ranks", "scores", "rounds")


@dataclass(frozen=True)
class NegativesTable:
    """Table of hard negatives. The rows of query q are `offsets[q]` to `offsets[q + 1] - 1`, sorted by rank."""

    offsets: Int64[ndarray, " queries+1"]  # first row of each query, followed by the number of rows
    documents: Int64[ndarray, " rows"]
    origins: Int8[ndarray, " rows"]  # origin of each row, as an index in `ORIGINS`
    ranks: Int32[ndarray, " rows"]  # rank from 0, the hardest first
    scores: Float32[ndarray, " rows"]  # score that the origin's retriever gave; NaN if there is none
    rounds: Int32[ndarray, " rows"]  # round of mining, from 0
    relevant: int = 0  # number of rows that were left out because the document is relevant to the query
    repeated: int = 0  # number of rows that were left out because the query has the document in another row

    @classmethod
    def of(
        cls,
        dataset: RetrievalDataset,
        queries: ndarray,
        documents: ndarray,
        origins: ndarray | str,
        ranks: ndarray | int = 0,
        scores: ndarray | float = np.nan,
        rounds: ndarray | int = 0,
    ) -> NegativesTable:
        """Build a table from rows in any order. Raise `DataError` if a position does not exist in the data set.

        Args:
            dataset: the data set. The judgements of all its opened splits define the relevant documents.
            queries: position of each row's query.
            documents: position of each row's document.
            origins: index in `ORIGINS` of each row, or the name of one origin for all rows.
            ranks, scores, rounds: see the class; an array with one value for each row, or one value for all rows.
        """
        _check_positions(dataset, queries, documents)
        code: ndarray | int = ORIGINS.index(origins) if isinstance(origins, str) else origins
        values = (queries, documents, code, ranks, scores, rounds)
        kinds = (np.int64, np.int64, np.int8, np.int32, np.float32, np.int32)
        columns = [
            np.ascontiguousarray(np.broadcast_to(np.asarray(column, dtype=kind), np.shape(queries)))
            for column, kind in zip(values, kinds, strict=True)
        ]
        pairs = columns[0] * len(dataset.documents) + columns[1]
        judged = [rows.where(rows.scores > 0) for rows in dataset.judgements.values()]
        known = [np.zeros(0, np.int64), *(_first_pairs(dataset, rows.queries, rows.documents) for rows in judged)]
        relevant = np.isin(_first_pairs(dataset, columns[0], columns[1]), np.concatenate(known))
        order = np.lexsort((columns[2], columns[3], pairs))
        order = order[~relevant[order]]
        again = np.zeros(len(order), dtype=bool)
        again[1:] = pairs[order[1:]] == pairs[order[:-1]]
        order = order[~again]
        order = order[np.lexsort((columns[2][order], columns[3][order], columns[0][order]))]
        offsets = np.zeros(len(dataset.queries) + 1, dtype=np.int64)
        np.cumsum(np.bincount(columns[0][order], minlength=len(dataset.queries)), out=offsets[1:])
        sorted_columns = dict(zip(TABLE_COLUMNS, (column[order] for column in columns[1:]), strict=True))
        return cls(offsets=offsets, relevant=int(relevant.sum()), repeated=int(again.sum()), **sorted_columns)

    @classmethod
    def judged(cls, dataset: RetrievalDataset, split: str) -> NegativesTable:
        """Return the pairs of a split that are judged irrelevant, with origin `gold`."""
        rows = dataset.judgements[split]
        rows = rows.where(rows.scores <= 0)
        return cls.of(dataset, rows.queries, rows.documents, "gold")

    @classmethod
    def merged(cls, dataset: RetrievalDataset, tables: Sequence[NegativesTable]) -> NegativesTable:
        """Merge several tables of one data set. `relevant` and `repeated` are summed."""
        columns = (np.concatenate([getattr(table, name) for table in tables]) for name in ("queries", *TABLE_COLUMNS))
        merged = cls.of(dataset, *columns)
        left_out = {name: sum(getattr(table, name) for table in (merged, *tables)) for name in ("relevant", "repeated")}
        return replace(merged, **left_out)

    @classmethod
    def chained(cls, tables: Sequence[NegativesTable], document_starts: Sequence[int]) -> NegativesTable:
        """Concatenate the tables of several data sets into one table for the combined data set. `document_starts` has
        the position of the first document of each data set."""
        counts = np.concatenate([np.diff(table.offsets) for table in tables])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        documents = [table.documents + start for table, start in zip(tables, document_starts, strict=True)]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(table, name) for table in tables]) for name in TABLE_COLUMNS[1:]
        }
        left_out = {name: sum(getattr(table, name) for table in tables) for name in ("relevant", "repeated")}
        return cls(offsets=offsets, documents=np.concatenate(documents), **left_out, **columns)

    @classmethod
    def none(cls, dataset: RetrievalDataset) -> NegativesTable:
        """Return a table without rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls.of(dataset, nothing, nothing, nothing)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def queries(self) -> Int64[ndarray, " rows"]:
        """For each row, the position of its query in the data set."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def digest(self) -> str:
        """SHA-256 over all that sampling depends on: the documents, origins and ranks of each query."""
        state = hashlib.sha256()
        for column in (self.offsets, self.documents, self.origins, self.ranks):
            state.update(np.ascontiguousarray(column).tobytes())
        return state.hexdigest()

    def counts(self) -> dict[str, int]:
        """Return, for tracking, the number of rows by origin, and of rows that were left out."""
        by_origin = np.bincount(self.origins, minlength=len(ORIGINS)).tolist()
        counts = {name: count for name, count in zip(ORIGINS, by_origin, strict=True) if count}
        return counts | {"relevant": self.relevant, "repeated": self.repeated}


def _first_pairs(dataset: RetrievalDataset, queries: ndarray, documents: ndarray) -> Int64[ndarray, " pairs"]:
    return dataset.queries.copies.first(queries) * len(dataset.documents) + dataset.documents.copies.first(documents)


def _check_positions(dataset: RetrievalDataset, queries: ndarray, documents: ndarray) -> None:
    sides = ("query", queries, len(dataset.queries)), ("document", documents, len(dataset.documents))
    for name, positions, size in sides:
        outside = (positions < 0) | (positions >= size)
        if outside.any():
            what = f"the negatives table names {name} {positions[outside][0]}, but there are only {size}"
            raise DataError(what, dataset.name, "mine the negatives of this data set")


PART_ROWS = 1 << 22  # maximum number of rows of a Parquet file
ROW_BYTES = 16  # estimated bytes of a compressed row on the disk, including its ids
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
    """Write a table to the directory `path`, with `meta` in its manifest. Raise `StorageError` if the directory exists
    or cannot be written; see `committed_directory`."""
    import pyarrow as pa

    described = {"dataset": dataset.digest, "rows": len(table), **(meta or {})}
    origins = pa.DictionaryArray.from_arrays(pa.array(table.origins), pa.array(ORIGINS))
    columns = {"origin": origins, "rank": table.ranks, "score": table.scores, "round": table.rounds}
    with committed_directory(path, described, replace=replace) as aside:
        write_pairs(aside, dataset, table.queries, table.documents, columns)


def write_pairs(
    folder: Path, dataset: RetrievalDataset, queries: ndarray, documents: ndarray, columns: Mapping[str, Any]
) -> None:
    """Write pairs of positions as Parquet files `part-00000.parquet`, ..., with ids and other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    query_ids, document_ids = id_array(dataset.queries.ids), id_array(dataset.documents.ids)
    for part, start in enumerate(range(0, max(1, len(queries)), PART_ROWS)):
        rows = slice(start, start + PART_ROWS)
        ids = {
            "query": query_ids.take(pa.array(queries[rows])),
            "document": document_ids.take(pa.array(documents[rows])),
        }
        table = pa.table(ids | {name: values[rows] for name, values in columns.items()})
        pq.write_table(table, folder / f"part-{part:05d}.parquet", compression="zstd")


def read_negatives(path: Path | str, dataset: RetrievalDataset) -> NegativesTable:
    """Read the table of a directory that `write_negatives` made, or of one Parquet file, for a data set.

    A null in the column `score` means that the row has no score. Raise `DataError` if the path does not exist, if a
    column is missing, has another type, an extension type (pickles are never loaded) or nulls, or if rows name
    unknown queries, documents or origins."""
    table = read_ids(Path(path))
    for name in ("rank", "round"):
        numbers = table[name].to_numpy()
        outside = numbers[(numbers < 0) | (numbers > np.iinfo(np.int32).max)]
        if len(outside):
            raise DataError(f"{name} {outside[0]} is out of range", str(path), "give numbers from 0 to 2^31 - 1")
    names = {"query": dataset.queries.ids, "document": dataset.documents.ids, "origin": ORIGINS}

    def remedy(name: str, unknown: str) -> str:
        return did_you_mean(unknown, ORIGINS) if name == "origin" else "give the table of this data set"

    positions = [
        positions_of(table[name], id_array(ids), name, Path(path), partial(remedy, name)) for name, ids in names.items()
    ]
    return NegativesTable.of(dataset, *positions, *(table[name].to_numpy() for name in COLUMNS[len(names) :]))


def read_ids(path: Path) -> Any:
    """Read the rows of a table with ids, as an Arrow table; raises the errors of `read_negatives`."""
    return read_pairs(path, NEGATIVES, _KINDS, _REMEDY, may_lack=["score"])


def read_pairs(
    path: Path,
    kind: PathKind,
    columns: Mapping[str, str],
    remedy: str,
    may_lack: Collection[str] = (),
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> Any:
    """Read the rows of a directory of Parquet files, or of one such file, as an Arrow table.

    `check` is called with the metadata in the manifest, if the path is a directory. See `read_columns` for the other
    arguments and the errors. A missing path raises the error of `kind`."""
    import pyarrow as pa

    if not path.exists():
        raise kind.error_of_missing(str(path))
    files = [path]
    if path.is_dir():
        manifest = read_manifest(path)
        if check is not None:
            check(manifest["meta"])
        files = [path / name for name in sorted(manifest["files"]) if name.endswith(".parquet")]
        if not files:
            raise DataError("the directory has no Parquet file", str(path), kind.remedy)
    return pa.concat_tables([read_columns(file, columns, remedy, may_lack) for file in files])


def id_array(ids: Sequence[str]) -> Any:
    """Return ids as an Arrow array."""
    import pyarrow as pa

    return pa.array(ids if isinstance(ids, list) else list(ids), pa.large_string())
