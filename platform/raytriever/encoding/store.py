"""Store of the embeddings of one side of a data set, in shards on disk; a row is the position of a document or a
query.

    DIR/manifest.json             written last: what encoded what, and how; the digest of every file
    DIR/plan.json                 the same settings, written first and compared when the work is continued
    DIR/shards/000000/            the rows of one range of positions, a committed directory of its own
    DIR/quarantine.jsonl          rows that killed the encoder's process, if any; their embeddings are 0

A store without its manifest is unfinished work, which the same command continues (`encoding.writer`). Components
are kept as
1. `fp32`: 4 bytes, memory-mapped when read;
2. `fp16`: 2 bytes, 11 significant bits; components beyond 65,504 cannot be kept;
3. `int8`: 1 byte and 4 a row: each row is divided by its largest component over 127 and rounded, so that a
   component is wrong by at most 1/254 of the row's largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.data.digests import check_directory
from raytriever.errors import ModelError, StorageError
from raytriever.reading.arrays import Shape, read_array
from raytriever.reading.structured import conform, read_json
from raytriever.storage import MANIFEST, disk_errors, read_manifest

EMBEDDINGS, SCALES = "embeddings.npy", "scales.npy"
_REMEDY = "encode again"
_LEVELS = 127
_HALF_MAX = 65_504.0


def write_embeddings(folder: Path, embeddings: Float32[ndarray, "rows width"], dtype: str) -> None:
    """Write rows into a folder.

    Args:
        folder: exists and holds none yet.
        embeddings: finite.
        dtype: `fp32`, `fp16` or `int8`.

    Raises:
        ModelError: `fp16` cannot hold them.
    """
    if dtype == "fp32":
        np.save(folder / EMBEDDINGS, embeddings)
    elif dtype == "fp16":
        if (largest := float(np.abs(embeddings).max(initial=0))) > _HALF_MAX:
            raise ModelError(f"a component of {largest:.6g} is beyond fp16", "--dtype fp16", "store fp32 or int8")
        np.save(folder / EMBEDDINGS, embeddings.astype(np.float16))
    else:
        scales = np.abs(embeddings).max(axis=1, initial=0) / np.float32(_LEVELS)
        rounded = np.rint(embeddings / np.where(scales > 0, scales, 1)[:, None])
        np.save(folder / EMBEDDINGS, rounded.astype(np.int8))
        np.save(folder / SCALES, scales.astype(np.float32))


def read_embeddings(
    folder: Path, shape: Shape = (None, None), rows: slice | ndarray = slice(None)
) -> Float32[ndarray, "rows width"]:
    """What `write_embeddings` wrote, or some rows of it; a slice of `fp32` is memory-mapped, not read.

    The mapping is copy-on-write: torch complains of arrays it may not write to.

    Args:
        folder: holds them.
        shape: rows and width that there must be, where they are known.
        rows: which are wanted.

    Raises:
        StorageError: a file has another type or shape.
    """
    whole = read_array(folder / EMBEDDINGS, ["float32", "float16", "int8"], shape, _REMEDY, mapped="c")
    kept = whole[rows]
    if kept.dtype == np.int8:
        scales = read_array(folder / SCALES, ["float32"], (len(whole),), _REMEDY)[rows]
        return kept.astype(np.float32) * scales[:, None]
    return kept if kept.dtype == np.float32 else kept.astype(np.float32)


PLAN, SHARDS = "plan.json", "shards"
KIND, VERSION = "embeddings", 1


class Keyed(TypedDict):
    """The key of a plan, which everything that was made by it holds."""

    key: str


class _StoreMeta(Keyed):
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
    left_out: list[int]


@dataclass(frozen=True)
class EmbeddingStore:
    """The embeddings of a data set's documents or queries.

    Args:
        path: the directory.
        meta: what encoded what: see `embedding_work.EmbeddingPlan`, and `left_out`, the rows that have none.
    """

    path: Path
    meta: dict[str, Any]

    @classmethod
    def open(cls, path: Path | str) -> EmbeddingStore:
        """Open a finished store; every byte of it is compared with its digest once, and again when it has changed.

        Raises:
            StorageError: it was never finished, is damaged, or holds something else.
        """
        path = Path(path)
        check_directory(path)
        meta = read_manifest(path, verify=False)["meta"]
        if meta.get("kind") != KIND or meta.get("version") != VERSION:
            raise StorageError("holds no embeddings", str(path), "name the --output of jobs/encode.py")
        held = conform(meta, str(path / MANIFEST), _StoreMeta, "encode again")
        if plan_key(path) != held["key"]:
            reason = f"is the plan of other embeddings than {MANIFEST} describes"
            raise StorageError(reason, str(path / PLAN), "encode again")
        if min(held["rows"] + 1, held["width"], held["shard_rows"]) < 1:
            raise StorageError("its rows, width or rows of a shard are below 1", str(path / MANIFEST), "encode again")
        if outside := [row for row in held["left_out"] if not 0 <= row < held["rows"]]:
            reason = f"row {outside[0]} is left out, of {held['rows']}"
            raise StorageError(reason, str(path / MANIFEST), "encode again")
        return cls(path, meta)

    def __len__(self) -> int:
        return int(self.meta["rows"])

    @property
    def width(self) -> int:
        """The number of components of an embedding."""
        return int(self.meta["width"])

    @property
    def left_out(self) -> Int64[ndarray, " rows"]:
        """The rows that have no embedding and are 0."""
        return np.array(self.meta["left_out"], dtype=np.int64)

    def shard(self, number: int, rows: slice | ndarray = slice(None)) -> Float32[ndarray, "rows width"]:
        """The embeddings of a shard, or some rows of it; raises `StorageError` where they have another shape."""
        of = self.meta["shard_rows"]
        length = min(of, len(self) - number * of)
        return read_embeddings(shard_folder(self.path, number), (length, self.width), rows)

    def blocks(self) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
        """Each shard as its first row and its embeddings: memory-mapped, or decoded when its turn comes."""
        for number, first in enumerate(range(0, len(self), self.meta["shard_rows"])):
            with disk_errors(self.path, reading=True):
                yield first, self.shard(number)

    def read(self, rows: ndarray) -> Float32[ndarray, "rows width"]:
        """The embeddings of these rows, in their order; of a shard only those are read.

        Raises:
            IndexError: a row is not in [0, len(store)).
        """
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must be in [0, {len(self)})")
        found = np.empty((len(rows), self.width), np.float32)
        shards = rows // self.meta["shard_rows"]
        for number in np.unique(shards):
            here = shards == number
            within = rows[here] - number * self.meta["shard_rows"]
            with disk_errors(self.path, reading=True):
                found[here] = self.shard(int(number), within)
        return found

    def array(self) -> Float32[ndarray, "rows width"]:
        """All embeddings in memory, 4 bytes a component."""
        found = np.empty((len(self), self.width), np.float32)
        for first, part in self.blocks():
            found[first : first + len(part)] = part
        return found


def plan_key(path: Path) -> str:
    """Return the key in the plan of a store, finished or not; raises `StorageError` where it has none."""
    return read_json(path / PLAN, Keyed, "encode again", needed=True)["key"]


def shard_folder(path: Path, number: int) -> Path:
    """Where a shard of a store stands."""
    return path / SHARDS / f"{number:06d}"
