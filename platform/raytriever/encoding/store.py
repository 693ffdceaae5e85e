"""Store of the embeddings of one side of a data set, in shards on disk; a row is the position of a document or a
query.

    DIR/manifest.json                    written last: model, data set and settings, and the digest of every file
    DIR/KEY/000000.embeddings.npy        the rows of one range of positions
    DIR/KEY/000000.keys.npy              the keys of their texts
    DIR/KEY/work/                        of an unfinished store: its plan, and the digests of its finished shards

KEY begins the key of the plan. A store without a manifest is unfinished, and the same command continues it
(`encoding.writer`). Components are stored as
1. `fp32`: 4 bytes, memory-mapped when read;
2. `fp16`: 2 bytes, 11 significant bits; components beyond 65,504 cannot be stored;
3. `int8`: 1 byte, and 4 bytes per row in `000000.scales.npy`: each row is divided by its largest component over 127 and
   rounded, so the error of a component is at most 1/254 of the row's largest component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.data.digests import check_directory
from raytriever.errors import ModelError, StorageError, setting
from raytriever.reading.arrays import Shape, read_array
from raytriever.reading.structured import conform, read_json
from raytriever.store.cache import hold
from raytriever.store.commit import MANIFEST, FileEntry, read_manifest

WORK, PLAN = "work", "plan.json"
KIND = "embeddings"
EMBEDDINGS, SCALES, KEYS = "embeddings", "scales", "keys"
_REMEDY = "encode again"
_LEVELS = 127
_HALF_MAX = 65_504.0


@dataclass(frozen=True)
class StoredRows:
    """Some rows of a shard as they are stored: the rows, ascending, and their values by the kind of the file."""

    rows: Int64[ndarray, " copied"]
    values: Mapping[str, ndarray]


def stored_values(
    embeddings: Float32[ndarray, "rows width"], dtype: str, copied: StoredRows | None = None
) -> dict[str, ndarray]:
    """Return the arrays of a shard, by the kind of the file: `EMBEDDINGS`, and `SCALES` for `int8`.

    Args:
        embeddings: finite embeddings, of the rows that are not copied.

    Raises:
        ModelError: a component is too large for `fp16`.
    """
    stored = {EMBEDDINGS: embeddings}
    if dtype == "fp16":
        if (largest := float(np.abs(embeddings).max(initial=0))) > _HALF_MAX:
            what = f"a component of {largest:.6g} is beyond fp16"
            raise ModelError(what, setting("dtype", "fp16"), "store fp32 or int8")
        stored = {EMBEDDINGS: embeddings.astype(np.float16)}
    elif dtype == "int8":
        scales = np.abs(embeddings).max(axis=1, initial=0) / np.float32(_LEVELS)
        rounded = np.rint(embeddings / np.where(scales > 0, scales, 1)[:, None])
        stored = {EMBEDDINGS: rounded.astype(np.int8), SCALES: scales.astype(np.float32)}
    if copied is not None and len(copied.rows):
        for kind, values in stored.items():
            whole = np.empty((len(values) + len(copied.rows), *values.shape[1:]), values.dtype)
            whole[copied.rows] = copied.values[kind]
            whole[np.setdiff1d(np.arange(len(whole)), copied.rows)] = values
            stored[kind] = whole
    return stored


def read_stored(shard: Path, dtype: str, width: int, rows: Int64[ndarray, " rows"]) -> dict[str, ndarray]:
    """Read some rows of a shard as they are stored: their values by the kind of the file."""
    stored = {"fp32": "float32", "fp16": "float16", "int8": "int8"}[dtype]
    values = {EMBEDDINGS: read_array(file_of(shard, EMBEDDINGS), [stored], (None, width), _REMEDY, mapped="r")[rows]}
    if dtype == "int8":
        values[SCALES] = read_array(file_of(shard, SCALES), ["float32"], (None,), _REMEDY)[rows]
    return values


def read_embeddings(
    shard: Path, shape: Shape = (None, None), rows: slice | ndarray = slice(None)
) -> Float32[ndarray, "rows width"]:
    """Read the rows of a shard, or some of them; a slice of `fp32` is memory-mapped.

    The mapping is copy-on-write, because torch warns of arrays that are read-only. `shape` has the expected numbers of
    rows and components, None where unknown.
    """
    whole = read_array(file_of(shard, EMBEDDINGS), ["float32", "float16", "int8"], shape, _REMEDY, mapped="c")
    stored = whole[rows]
    if stored.dtype == np.int8:
        scales = read_array(file_of(shard, SCALES), ["float32"], (len(whole),), _REMEDY)[rows]
        return stored.astype(np.float32) * scales[:, None]
    return stored if stored.dtype == np.float32 else stored.astype(np.float32)


class StoredPlan(TypedDict):
    """Fields of a plan by which other stores find the store; see `writer.EmbeddingPlan`."""

    key: str
    encoder: str
    dataset: str


def stored_files(path: Path) -> Iterator[tuple[StoredPlan, dict[str, FileEntry]]]:
    """Yield the plans of the stores in a directory, each with the files of its finished shards: the store that is
    finished, if there is one, and the unfinished ones."""
    if (path / MANIFEST).exists():
        with suppress(OSError, StorageError):
            manifest = read_manifest(path, verify=None)
            yield conform(manifest["meta"], str(path), StoredPlan, _REMEDY), manifest["files"]
    for file in path.glob(f"*/{WORK}/{PLAN}"):
        with suppress(OSError, StorageError):
            plan, files = read_json(file, StoredPlan, _REMEDY), dict[str, FileEntry]()
            for report in file.parent.glob("[0-9]*.json"):
                with suppress(OSError, StorageError):
                    files |= read_json(report, dict[str, FileEntry], _REMEDY)
            yield plan, files


def by_shard(files: Mapping[str, FileEntry]) -> dict[str, dict[str, FileEntry]]:
    """Return the files of each shard, by the path of the shard in the directory, ascending."""
    shards: dict[str, dict[str, FileEntry]] = {}
    for name in sorted(files):
        shards.setdefault(name.partition(".")[0], {})[name] = files[name]
    return shards


class _StoreMeta(TypedDict):
    key: str
    model_digest: str
    data_digest: str
    side: str
    prefix: str
    length: int
    pooling: str
    similarity: str
    rows: int
    width: int
    shard_rows: int


@dataclass(frozen=True)
class EmbeddingStore:
    """Store of the embeddings of a data set's documents or queries.

    Args:
        meta: fields of `writer.EmbeddingPlan`.
    """

    path: Path
    meta: dict[str, Any]

    @classmethod
    def open(cls, path: Path | str) -> EmbeddingStore:
        """Open a finished store. Every file is compared with its digest once, and again after it has changed.

        Raises:
            StorageError: the store was never finished, is damaged, or has other content.
        """
        path = Path(path)
        meta = check_directory(path)["meta"]
        if meta.get("kind") != KIND:
            raise StorageError("holds no embeddings", str(path), f"name the {setting('output')} of `raytriever encode`")
        fields = conform(meta, str(path / MANIFEST), _StoreMeta, _REMEDY)
        if min(fields["rows"] + 1, fields["width"], fields["shard_rows"]) < 1 or not fields["key"].isalnum():
            raise StorageError("its key, rows, width or rows of a shard are wrong", str(path / MANIFEST), _REMEDY)
        store = cls(path, meta)
        hold(path, store)
        return store

    def __len__(self) -> int:
        return int(self.meta["rows"])

    @property
    def width(self) -> int:
        """Number of components of an embedding."""
        return int(self.meta["width"])

    def shard(self, number: int, rows: slice | ndarray = slice(None)) -> Float32[ndarray, "rows width"]:
        """Return the embeddings of a shard, or some of its rows.

        Raises:
            StorageError: the files have another shape, or the store was encoded again after it was opened.
        """
        size = self.meta["shard_rows"]
        length = min(size, len(self) - number * size)
        shard = shard_path(self.path, self.meta["key"], number)
        if not shard.parent.is_dir():
            raise StorageError("was encoded again while it was read", str(self.path), "open it again")
        return read_embeddings(shard, (length, self.width), rows)

    def blocks(self, shards: Sequence[int] | None = None) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
        """Yield shards, by default all, as the first row and the embeddings, memory-mapped or decoded on demand."""
        size = self.meta["shard_rows"]
        for number in range(-(-len(self) // size)) if shards is None else shards:
            values = self.shard(number)
            yield number * size, values

    def read(self, rows: ndarray) -> Float32[ndarray, "rows width"]:
        """Return the embeddings of these rows, in their order; only these rows are read.

        Raises:
            IndexError: a row is not in [0, len(store)).
        """
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must be in [0, {len(self)})")
        embeddings = np.empty((len(rows), self.width), np.float32)
        shards = rows // self.meta["shard_rows"]
        for number in np.unique(shards):
            is_here = shards == number
            within = rows[is_here] - number * self.meta["shard_rows"]
            embeddings[is_here] = self.shard(int(number), within)
        return embeddings

    def array(self) -> Float32[ndarray, "rows width"]:
        """Return all embeddings in memory, with 4 bytes per component."""
        embeddings = np.empty((len(self), self.width), np.float32)
        for first, block in self.blocks():
            embeddings[first : first + len(block)] = block
        return embeddings


def shard_path(path: Path, key: str, number: int) -> Path:
    """Return the path of a shard of a store, with which the paths of its files begin."""
    return path / key[:16] / f"{number:06d}"


def file_of(shard: Path, kind: str) -> Path:
    """Return the path of a file of a shard."""
    return shard.with_name(f"{shard.name}.{kind}.npy")
