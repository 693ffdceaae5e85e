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
import pyarrow.parquet as pq
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.id_columns import NUMBER, TEXT, places_of, read_columns
from raytriever.data.teacher_table import TeacherTable
from raytriever.errors import DataError
from raytriever.paths import SCORES
from raytriever.storage import read_manifest

KIND = "teacher scores"
PART_ROWS = 1 << 22
COLUMNS = ("query", "document", "score")
_KINDS = dict(zip(COLUMNS, (TEXT, TEXT, NUMBER), strict=True))


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
        raise SCORES.error_of_missing(str(path))
    files = _files(path, dataset) if path.is_dir() else [path]
    known = [pa.array(list(ids), pa.large_string()) for ids in _ids(dataset)]
    parts = [_part(file, known) for file in files]
    if not parts:
        raise DataError("the directory holds no Parquet file", str(path), SCORES.remedy)
    queries, documents, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TeacherTable.of(dataset, queries, documents, scores, str(path))


def _files(path: Path, dataset: RetrievalDataset) -> list[Path]:
    manifest = read_manifest(path)
    meta: Mapping[str, Any] = manifest["meta"]
    if meta.get("kind") != KIND:
        raise DataError(f"holds {meta.get('kind') or 'something else'}, no teacher's scores", str(path), SCORES.remedy)
    for name, digest in identity(dataset).items():
        if meta.get(name) != digest:
            raise DataError(
                f"holds scores of other {name}: of {meta.get('dataset')} as it was, not of {dataset.name} as it is",
                str(path),
                "score this data set with jobs/score.py",
            )
    return [path / name for name in sorted(manifest["files"]) if name.endswith(".parquet")]


def _part(file: Path, known: Sequence[Any]) -> tuple[ndarray, ...]:
    table = read_columns(file, _KINDS, SCORES.remedy)
    query, document = (
        places_of(table[name], ids, name, file, lambda first: "give the scores of this data set").astype(np.int64)
        for name, ids in zip(COLUMNS, known, strict=False)
    )
    return query, document, table["score"].to_numpy()


def _ids(dataset: RetrievalDataset) -> tuple[Sequence[str], Sequence[str]]:
    return dataset.queries.ids, dataset.documents.ids
