"""Embeddings from another program: a folder with the vectors of passages and queries, and their ids.

    passages.parquet              columns `id` and `embedding`, a list of floats
    passages.npy                  array [passages, dimension] of float16, float32 or float64
    passages.ids.txt              the ids of the rows of passages.npy, one on a line
    passages.jsonl, .jsonl.gz     rows {"id": ..., "embedding": [...]}

Files of the queries are called `queries` and have one of these formats. Passages may have several files, such as
`passages-0.npy` and `passages-1.npy`, which are read in the order of their names. Arrays are memory-mapped block by
block. Files of the other formats are converted once to an array in the cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import open_parquet, read_array
from raytriever.core.reading.regular_files import check_regular
from raytriever.core.store.cache import cache_folder, hold
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.core.store.disk import files_below
from raytriever.core.store.unfinished_pieces import make_once
from raytriever.data.formats.file_rows import numbered_rows, object_of
from raytriever.data.records_and_bad_rows import BadRow

PASSAGES, QUERIES = "passages", "queries"
_SUFFIXES = (".parquet", ".npy", ".jsonl", ".jsonl.gz")
_COLLECTION, _ARRAY, _IDS, _ID_FILE = "vectors", "embeddings.f32", "ids.txt", ".ids.txt"
_BLOCK_BYTES, _ROWS = 1 << 26, 8_192
UNIT = 1e-3  # the length of a unit vector differs from 1 by at most this number
_REMEDY = "write the folder again; see docs/how-to/evaluate.md"


@dataclass(frozen=True)
class _MappedArray:
    """Array of vectors in a file. Its rows begin after `offset` bytes of the file."""

    file: Path
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, int]

    def read(self, rows: slice | ndarray) -> Float32[ndarray, "some dim"]:
        """Return some rows. Only a slice of float32 stays memory-mapped while the caller uses it."""
        first = rows.start if isinstance(rows, slice) else 0
        count = (rows.stop if isinstance(rows, slice) else self.shape[0]) - first
        start = self.offset + first * self.shape[1] * self.dtype.itemsize
        mapped = np.memmap(self.file, self.dtype, "r", start, (count, self.shape[1]))  # noqa: TID251 - was checked
        chosen = mapped if isinstance(rows, slice) else mapped[rows]
        with np.errstate(over="ignore"):  # an overflow becomes infinite, and `lengths` reports it
            return np.asarray(chosen if chosen.dtype == np.float32 else chosen.astype(np.float32))


@dataclass(frozen=True)
class StoredVectors:
    """Vectors of the passages or the queries of a data set, in files."""

    name: str  # folder and side, for errors
    ids: Any  # ids of the vectors, as an Arrow array of distinct strings
    arrays: Sequence[_MappedArray]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dim(self) -> int:
        """Number of components."""
        return self.arrays[0].shape[1]

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows dim"]]]:
        """Yield, for each block, the number of its first row and its vectors."""
        step, first = max(1, _BLOCK_BYTES // (4 * self.dim)), 0
        for array in self.arrays:
            for start in range(0, array.shape[0], step):
                yield first + start, array.read(slice(start, min(start + step, array.shape[0])))
            first += array.shape[0]

    def read(self, rows: Int64[ndarray, " some"]) -> Float32[ndarray, "some dim"]:
        """Return the vectors of some rows."""
        starts = np.cumsum([0, *(array.shape[0] for array in self.arrays)])
        owner = np.searchsorted(starts, rows, side="right") - 1
        vectors = np.empty((len(rows), self.dim), np.float32)
        for number in np.unique(owner).tolist():
            vectors[owner == number] = self.arrays[number].read(rows[owner == number] - starts[number])
        return vectors

    @cached_property
    def lengths(self) -> tuple[float, float]:
        """Smallest and largest length of the vectors.

        Raises:
            DataError: a component is not finite.
        """
        low, high = np.inf, 0.0
        for first, block in self.blocks():
            # In float32 the squares of large components would overflow.
            lengths = np.linalg.norm(block.astype(np.float64, copy=False), axis=1) if len(block) else np.zeros(0)
            if not np.isfinite(lengths).all():
                row = first + int(np.argmin(np.isfinite(lengths)))
                what = f"the embedding of {self.ids[row].as_py()!r} has a component that is not finite"
                raise DataError(what, self.name, "encode this text again")
            low, high = min(low, float(lengths.min(initial=np.inf))), max(high, float(lengths.max(initial=0)))
        return low, high

    @property
    def has_unit_length(self) -> bool:
        """True if all vectors have length 1."""
        low, high = self.lengths
        return low >= 1 - UNIT and high <= 1 + UNIT


def open_vectors(folder: str, side: str) -> StoredVectors:
    """Open the vectors of the passages or queries in a folder. `side` is `PASSAGES` or `QUERIES`.

    Raises:
        DataError: there are no vectors, a row is broken, an id is repeated, or the dimensions differ.
    """
    import pyarrow as pa

    files = [(suffix, file) for suffix, some in _files(Path(folder), side).items() for file in some]
    if not files:
        what = f"has no {side}.parquet, {side}.npy or {side}.jsonl"
        raise DataError(what, folder, "give a folder with the vectors of passages and of queries, and their ids")
    if len({suffix for suffix, _ in files}) > 1:
        names = " and ".join(file.name for _, file in files[:2])
        raise DataError(f"has {side} in two formats, {names}", folder, "remove the files of one format")
    with activity(f"reading the vectors of {side}"):
        opened = [_open_array(file) if suffix == ".npy" else _open_converted(suffix, file) for suffix, file in files]
    ids = pa.chunked_array([file_ids for file_ids, _ in opened], pa.string()).combine_chunks()
    arrays = [array for _, array in opened]
    for array in arrays:
        if array.shape[1] != arrays[0].shape[1]:
            what = f"dimension {array.shape[1]} differs from dimension {arrays[0].shape[1]} of {arrays[0].file}"
            raise DataError(what, str(array.file), "encode all texts with one model")
    if not len(ids):
        raise DataError("has no vector", str(files[0][1]), _REMEDY)
    if len(ids) > len(ids.unique()):
        repeated = next(count["values"] for count in ids.value_counts().to_pylist() if count["counts"] > 1)
        raise DataError(f"has the id {repeated!r} twice", f"{folder}, {side}", "give each id once")
    return StoredVectors(f"{folder}, {side}", ids, arrays)


def state_of(folder: str) -> list[Any]:
    """Return the path, size and modification time of each file in a folder, to notice later changes."""
    found = [file for side in (PASSAGES, QUERIES) for some in _files(Path(folder), side).values() for file in some]
    return [_state(file) for file in found]


def _files(folder: Path, side: str) -> dict[str, list[Path]]:
    names = sorted(file for file in files_below(folder) if file.parent == folder)
    return {
        suffix: [file for file in names if re.fullmatch(rf"{side}(-.*)?{suffix}", file.name)] for suffix in _SUFFIXES
    }


def _state(file: Path) -> list[Any]:
    state = file.resolve().stat()
    return [str(file.resolve()), state.st_size, state.st_mtime_ns]


def _open_array(file: Path) -> tuple[Any, _MappedArray]:
    kinds = ("float16", "float32", "float64")
    array: Any = read_array(file, kinds, (None, None), _REMEDY, mapped="r")
    shape, dtype, offset = array.shape, array.dtype, getattr(array, "offset", 0)
    id_file = file.with_name(file.name.removesuffix(".npy") + _ID_FILE)
    if not id_file.is_file():
        raise DataError(f"has no {id_file.name} next to it", str(file), "write the id of each row, one on a line")
    ids = _read_ids(id_file)
    if len(ids) != shape[0]:
        raise DataError(f"has {shape[0]:,} rows, but {id_file.name} has {len(ids):,} ids", str(file), _REMEDY)
    return ids, _MappedArray(file, dtype, offset, shape)


def _read_ids(file: Path) -> Any:
    import pyarrow as pa

    try:
        return pa.array(file.read_text("utf-8").removesuffix("\n").replace("\r\n", "\n").split("\n"), pa.string())
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8", str(file), _REMEDY) from error


def _open_converted(suffix: str, file: Path) -> tuple[Any, _MappedArray]:
    """Return the ids and the array of a file. The file is converted once, and the cache keeps the result."""
    key = hashlib.sha256(json.dumps(_state(file)).encode()).hexdigest()[:32]
    entry = cache_folder() / _COLLECTION / key
    read = _parquet_rows if suffix == ".parquet" else _json_rows
    meta: dict[str, Any] = {"kind": "vectors", "file": str(file)}

    def make() -> None:
        with committed_directory(entry, meta, replace=entry.exists(), durable=False) as folder:
            rows, dim = 0, None
            with (folder / _ARRAY).open("wb") as array, (folder / _IDS).open("w", encoding="utf-8") as ids:
                for names, vectors in read(file):
                    dim = vectors.shape[1] if dim is None else dim
                    if vectors.shape[1] != dim:
                        what = f"the embedding of {names[0]!r} has {vectors.shape[1]} components, but others have {dim}"
                        raise DataError(what, str(file), "encode all texts with one model")
                    array.write(np.ascontiguousarray(vectors, np.float32).data)
                    ids.writelines(f"{name}\n" for name in names)
                    rows += len(names)
            meta.update(rows=rows, dim=dim or 0)

    make_once(entry, make)
    stored = read_manifest(entry, verify=False)["meta"]
    array = _MappedArray(entry / _ARRAY, np.dtype(np.float32), 0, (int(stored["rows"]), int(stored["dim"])))
    ids = _read_ids(entry / _IDS) if array.shape[0] else []
    hold(entry, _MappedArray)
    return ids, array


def _parquet_rows(file: Path) -> Iterator[tuple[list[str], ndarray]]:
    """Yield ids and vectors from a Parquet file, in groups of rows with the same dimension."""
    import pyarrow as pa
    import pyarrow.compute as pc

    check_regular(file)
    with pa.OSFile(str(file)) as stream:
        parquet = open_parquet(str(file), stream)
        schema = parquet.schema_arrow
        for name in ("id", "embedding"):
            if schema.names.count(name) != 1:
                what = f"must have one column {name!r}; its columns are {', '.join(schema.names) or 'none'}"
                raise DataError(what, str(file), "write columns id and embedding")
        kind = schema.field("embedding").type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not pa.types.is_floating(kind.value_type):
            raise DataError(f"column 'embedding' has the type {kind}", str(file), "write lists of floats")
        for batch in parquet.iter_batches(_ROWS, columns=["id", "embedding"]):
            names = _checked_ids(batch["id"].to_pylist(), file)
            dims = pc.fill_null(pc.list_value_length(batch["embedding"]), 0).to_numpy(zero_copy_only=False)
            values = batch["embedding"].flatten().to_numpy(zero_copy_only=False)
            yield from _of_one_dim(names, dims, values)


def _json_rows(file: Path) -> Iterator[tuple[list[str], ndarray]]:
    names: list[Any] = []
    vectors: list[Any] = []
    for number, line in numbered_rows(str(file)):
        try:
            row = object_of(line)
            vector = np.asarray(row["embedding"], np.float64)
            if vector.ndim != 1:
                raise BadRow("'embedding' is not a list of numbers")
            names.append(row["id"])
        except (BadRow, KeyError, ValueError, TypeError) as error:
            what = str(error) if isinstance(error, BadRow) else 'is not a row {"id": ..., "embedding": [...]}'
            raise DataError(what, f"{file}:{number}", _REMEDY) from error
        vectors.append(vector)
        if len(names) == _ROWS:
            yield from _of_one_dim(
                _checked_ids(names, file), np.array(list(map(len, vectors))), np.concatenate(vectors)
            )
            names, vectors = [], []
    if names:
        yield from _of_one_dim(_checked_ids(names, file), np.array(list(map(len, vectors))), np.concatenate(vectors))


def _checked_ids(names: list[Any], file: Path) -> list[str]:
    """Return ids as strings. Whole numbers are valid ids too."""
    for name in names:
        if type(name) not in (str, int) or "\n" in str(name):
            raise DataError(f"{name!r} is not an id", str(file), "write ids as texts of one line, or whole numbers")
    return list(map(str, names))


def _of_one_dim(names: list[str], dims: ndarray, values: ndarray) -> Iterator[tuple[list[str], ndarray]]:
    ends = np.cumsum(dims)
    changes = (np.flatnonzero(dims[1:] != dims[:-1]) + 1).tolist()
    for begin, end in pairwise([0, *changes, len(dims)] if len(dims) else []):
        some = values[ends[begin] - dims[begin] : ends[end - 1]]
        with np.errstate(over="ignore"):  # float64 may exceed float32; `lengths` reports infinity
            yield names[begin:end], some.reshape(end - begin, int(dims[begin])).astype(np.float32)
