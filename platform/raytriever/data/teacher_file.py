"""A teacher's scores on disk: Parquet with the ids of queries and documents, so that they outlive positions.

What was written here is a committed directory (`storage`) of `part-00000.parquet` and so on, whose manifest says of
which queries and documents; a single Parquet file with the same columns, whoever made it, is read as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.parquet import column_names
from raytriever.data.teacher_table import TeacherTable
from raytriever.errors import DataError
from raytriever.storage import disk_errors, read_manifest

KIND = "teacher scores"
PART_ROWS = 1 << 22
COLUMNS = ("query", "document", "score")
_REMEDY = "give a directory that jobs/score.py wrote, or a Parquet file of the columns query, document and score"


def identity(dataset: RetrievalDataset) -> dict[str, str]:
    """What scores belong to: the digests of texts and ids, whatever splits are open."""
    return {"queries": dataset.queries.digest, "documents": dataset.documents.digest}


def write_scores(
    folder: Path,
    dataset: RetrievalDataset,
    queries: Int64[ndarray, " pairs"],
    documents: Int64[ndarray, " pairs"],
    scores: Float32[ndarray, " pairs"],
) -> None:
    """Write the files of a directory that is about to be committed; positions become ids."""
    query_ids, document_ids = (pa.array(list(ids), pa.large_string()) for ids in _ids(dataset))
    for part, start in enumerate(range(0, max(1, len(scores)), PART_ROWS)):
        rows = slice(start, start + PART_ROWS)
        columns = {
            "query": query_ids.take(pa.array(queries[rows])),
            "document": document_ids.take(pa.array(documents[rows])),
            "score": pa.array(scores[rows]),
        }
        pq.write_table(pa.table(columns), folder / f"part-{part:05d}.parquet", compression="zstd")


def read_scores(path: Path | str, dataset: RetrievalDataset) -> TeacherTable:
    """Read scores for a data set.

    Args:
        path: a directory that `jobs/score.py` wrote, or one Parquet file.
        dataset: has every query and document that is named.

    Raises:
        DataError: nothing there, scores of other texts, a column missing or of another type, unknown ids, a score that
            is not finite, a pair with two.
        StorageError: a directory that was never completed, or is torn.
    """
    path = Path(path)
    if not path.exists():
        raise DataError("there are no scores", str(path), _REMEDY)
    files = _files(path, dataset) if path.is_dir() else [path]
    known = [pa.array(list(ids), pa.large_string()) for ids in _ids(dataset)]
    parts = [_part(file, known) for file in files]
    if not parts:
        raise DataError("the directory holds no Parquet file", str(path), _REMEDY)
    queries, documents, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TeacherTable.of(dataset, queries, documents, scores, str(path))


def _files(path: Path, dataset: RetrievalDataset) -> list[Path]:
    manifest = read_manifest(path)
    meta: Mapping[str, Any] = manifest["meta"]
    if meta.get("kind") != KIND:
        raise DataError(f"holds {meta.get('kind') or 'something else'}, no teacher's scores", str(path), _REMEDY)
    for name, digest in identity(dataset).items():
        if meta.get(name) != digest:
            raise DataError(
                f"holds scores of other {name}: of {meta.get('dataset')} as it was, not of {dataset.name} as it is",
                str(path),
                "score this data set with jobs/score.py",
            )
    return [path / name for name in sorted(manifest["files"]) if name.endswith(".parquet")]


def _part(file: Path, known: Sequence[Any]) -> tuple[ndarray, ...]:
    with disk_errors(file):
        try:
            names = column_names(str(file))
            for name in COLUMNS:
                if name not in names:
                    raise DataError(f"no column {name!r}; there are {', '.join(names) or 'none'}", str(file), _REMEDY)
            _check_types(pq.read_schema(file), file)
            table = pq.read_table(file, columns=list(COLUMNS))
        except pa.ArrowInvalid as error:
            raise DataError(f"not Parquet ({' '.join(str(error).split())})", str(file), "write it again") from error
    for name in COLUMNS:
        if table[name].null_count:
            raise DataError(f"column {name!r} is empty in {table[name].null_count} of {len(table)} rows", str(file))
    query, document = (_places(table[name], ids, name, file) for name, ids in zip(COLUMNS, known, strict=False))
    return query, document, table["score"].to_numpy()


def _check_types(schema: Any, file: Path) -> None:
    for name in COLUMNS[:2]:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"column {name!r} is {kind}, not string", str(file), "write ids as strings")
    kind = schema.field("score").type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise DataError(f"column 'score' is {kind}, not a number", str(file), _REMEDY)


def _places(column: Any, known: Any, name: str, file: Path) -> ndarray:
    """The place of each id among the known ones."""
    found = pc.index_in(column.cast(pa.large_string()), value_set=known)
    if found.null_count:
        first = column.filter(pc.is_null(found))[0].as_py()
        raise DataError(
            f"{found.null_count} of {len(column)} rows name an unknown {name}, the first {first!r}",
            str(file),
            "give the scores of this data set",
        )
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _ids(dataset: RetrievalDataset) -> tuple[Sequence[str], Sequence[str]]:
    return dataset.queries.ids, dataset.documents.ids
