"""Store of the embeddings of all passages or all queries of a data set, in shards on disk. Row i belongs to text i.

    DIR/manifest.json                    written last: model, data set and settings, and the digest of every file
    DIR/KEY/000000.embeddings.npy        the rows of one range of positions
    DIR/KEY/000000.keys.npy              a hash of the text of each of these rows
    DIR/KEY/work/                        only in an unfinished store: its plan, and the digests of its finished shards

KEY is the beginning of `EmbeddingPlan.key`. A store without a manifest is unfinished, and the same command continues it
(`encoding.write_or_reuse_embeddings`). Components are stored as
1. `fp32`: 4 bytes, memory-mapped when read;
2. `fp16`: 2 bytes, 11 significant bits; components beyond 65,504 cannot be stored;
3. `int8`: 1 byte, and 4 bytes per row in `000000.scales.npy`: each row is divided by 1/127 of its largest
   absolute component and rounded. So the error of a component is at most 1/254 of this largest one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import ModelError, StorageError, setting
from raytriever.core.reading.arrays import Shape, read_array
from raytriever.core.reading.json_and_yaml import conform, read_json
from raytriever.core.store.cache import hold
from raytriever.core.store.commit import FORMAT, MANIFEST, FileEntry, read_manifest
from raytriever.data.file_digests import check_directory
from raytriever.data.hashed_ids import KEY_BYTES
from raytriever.models.prompts import Side

WORK, PLAN = "work", "plan.json"
KIND = "embeddings"
EMBEDDINGS, SCALES, KEYS = "embeddings", "scales", "keys"
_REMEDY = "encode again"
_SHARD_BYTES = 1_024  # estimated bytes of the file headers and the report of a shard
_LAYOUT = 3  # version of the files; it is part of the key, so a new layout never reads old stores
_LEVELS = 127
_HALF_MAX = 65_504.0


@dataclass(frozen=True)
class EmbeddingPlan:
    """Content and settings of a store. The names of the model and the data set do not affect `key`."""

    model: str  # name of the model, as the user passed it
    model_digest: str  # SHA-256 over weights, tokenizer and all settings that decide an embedding
    dataset: str
    data_digest: str  # digest of the side's ids and texts
    side: Side
    prefix: str  # prompt that is put before every text
    length: int  # largest number of tokens of a text, including special tokens
    # `pooling`, `similarity`: see `models.model_settings`.
    pooling: str
    similarity: str
    precision: str  # number format in which the encoder computes: `fp32`, `bf16` or `int8`
    dtype: str  # storage type; see above
    rows: int
    dim: int
    shard_rows: int  # rows of every shard except the last; see `write_or_reuse_embeddings.shard_rows`
    # Tokens per batch, including padding. They affect the last bits of an embedding. None means a value that suits the
    # device of the encoding process.
    batch_tokens: int | None = None

    @cached_property
    def key(self) -> str:
        """SHA-256 over everything that decides the bytes of the store."""
        decides = {name: value for name, value in asdict(self).items() if name not in ("model", "dataset")}
        return hashlib.sha256(json.dumps([_LAYOUT, decides], sort_keys=True).encode()).hexdigest()

    @cached_property
    def encoder(self) -> str:
        """SHA-256 over everything that decides an embedding and how it is stored, except the text.

        The prompt is part of the text. docs/explanation/decisions.md explains why tokens per batch are left out.
        """
        names = ("model_digest", "side", "length", "pooling", "similarity", "precision", "dtype", "dim")
        decides = {name: getattr(self, name) for name in names}
        return hashlib.sha256(json.dumps([FORMAT, decides], sort_keys=True).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Estimated bytes of all shards: values, scales of int8, keys of texts, file headers and reports."""
        row = self.dim * {"fp32": 4, "fp16": 2, "int8": 1}[self.dtype] + (4 if self.dtype == "int8" else 0) + KEY_BYTES
        return self.rows * row + self.shards * _SHARD_BYTES

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.shard_rows)

    def rows_of(self, number: int) -> range:
        """Return the positions of the texts of a shard."""
        return range(number * self.shard_rows, min(self.rows, (number + 1) * self.shard_rows))


@dataclass(frozen=True)
class StoredRows:
    """Some rows of a shard as they are stored: the numbers of the rows, ascending, and their values by kind of file."""

    rows: Int64[ndarray, " copied"]
    values: Mapping[str, ndarray]


def stored_values(
    embeddings: Float32[ndarray, "rows dim"], dtype: str, copied: StoredRows | None = None
) -> dict[str, ndarray]:
    """Return the arrays of a shard by kind of file: `EMBEDDINGS`, and `SCALES` for `int8`.

    Args:
        embeddings: finite embeddings of the rows that are not copied from an earlier store.

    Raises:
        ModelError: a component is too large for `fp16`.
    """
    stored = {EMBEDDINGS: embeddings}
    if dtype == "fp16":
        if (largest := float(np.abs(embeddings).max(initial=0))) > _HALF_MAX:
            what = f"a component of {largest:.6g} is too large for fp16"
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


def read_stored(shard: Path, dtype: str, dim: int, rows: Int64[ndarray, " rows"]) -> dict[str, ndarray]:
    """Read some rows of a shard as they are stored. Return their values by kind of file (see `stored_values`)."""
    stored = {"fp32": "float32", "fp16": "float16", "int8": "int8"}[dtype]
    values = {EMBEDDINGS: read_array(file_of(shard, EMBEDDINGS), [stored], (None, dim), _REMEDY, mapped="r")[rows]}
    if dtype == "int8":
        values[SCALES] = read_array(file_of(shard, SCALES), ["float32"], (None,), _REMEDY)[rows]
    return values


def read_embeddings(
    shard: Path, shape: Shape = (None, None), rows: slice | ndarray = slice(None)
) -> Float32[ndarray, "rows dim"]:
    """Read some or all rows of a shard. A slice of `fp32` is memory-mapped.

    The mapping is copy-on-write, because torch warns about read-only arrays. `shape` is the expected number of rows and
    of components; each is None if it is unknown."""
    whole = read_array(file_of(shard, EMBEDDINGS), ["float32", "float16", "int8"], shape, _REMEDY, mapped="c")
    stored = whole[rows]
    if stored.dtype == np.int8:
        scales = read_array(file_of(shard, SCALES), ["float32"], (len(whole),), _REMEDY)[rows]
        return stored.astype(np.float32) * scales[:, None]
    return stored if stored.dtype == np.float32 else stored.astype(np.float32)


def stored_files(path: Path) -> Iterator[tuple[EmbeddingPlan, dict[str, FileEntry]]]:
    """Yield the plan of each store in a directory, finished or not, with the files of its finished shards."""
    if (path / MANIFEST).exists():
        with suppress(OSError, StorageError):
            manifest = read_manifest(path, verify=None)
            yield _plan_of(path, manifest["meta"]), manifest["files"]
    for file in path.glob(f"*/{WORK}/{PLAN}"):
        with suppress(OSError, StorageError):  # another process may finish or remove it now
            plan, files = read_json(file, EmbeddingPlan, _REMEDY), dict[str, FileEntry]()
            for report in file.parent.glob("[0-9]*.json"):
                with suppress(OSError, StorageError):
                    files |= read_json(report, dict[str, FileEntry], _REMEDY)
            yield plan, files


def by_shard(files: Mapping[str, FileEntry]) -> dict[str, dict[str, FileEntry]]:
    """Group files by shard, in ascending order of the paths of the shards."""
    shards: dict[str, dict[str, FileEntry]] = {}
    for name in sorted(files):
        shards.setdefault(name.partition(".")[0], {})[name] = files[name]
    return shards


@dataclass(frozen=True)
class EmbeddingStore:
    """Store of the embeddings of a data set's documents or queries."""

    path: Path
    plan: EmbeddingPlan

    @classmethod
    def open(cls, path: Path | str) -> EmbeddingStore:
        """Open a finished store. A file is compared with its digest if it is new, or has changed since the last check.

        Raises:
            StorageError: the store was never finished, is damaged, or has other content.
        """
        path = Path(path)
        store = cls(path, _plan_of(path, check_directory(path)["meta"]))
        hold(path, store)
        return store

    def __len__(self) -> int:
        return self.plan.rows

    @property
    def dim(self) -> int:
        """Number of components of an embedding."""
        return self.plan.dim

    def shard(self, number: int, rows: slice | ndarray = slice(None)) -> Float32[ndarray, "rows dim"]:
        """Return the embeddings of a shard, or some of its rows.

        Raises:
            StorageError: the files have another shape, or the store was encoded again after it was opened.
        """
        shard = shard_path(self.path, self.plan.key, number)
        if not shard.parent.is_dir():
            raise StorageError("was encoded again while it was read", str(self.path), "open it again")
        return read_embeddings(shard, (len(self.plan.rows_of(number)), self.dim), rows)

    def blocks(self, shards: Sequence[int] | None = None) -> Iterator[tuple[int, Float32[ndarray, "rows dim"]]]:
        """Yield, for each shard, the number of its first row and its embeddings, memory-mapped or decoded on demand."""
        for number in range(self.plan.shards) if shards is None else shards:
            values = self.shard(number)
            yield self.plan.rows_of(number).start, values

    def read(self, rows: ndarray) -> Float32[ndarray, "rows dim"]:
        """Return the embeddings of these rows, in the given order. No other rows are read.

        Raises:
            IndexError: a row is not in [0, len(store)).
        """
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must be in [0, {len(self)})")
        embeddings = np.empty((len(rows), self.dim), np.float32)
        shards = rows // self.plan.shard_rows
        for number in np.unique(shards):
            is_here = shards == number
            within = rows[is_here] - number * self.plan.shard_rows
            embeddings[is_here] = self.shard(int(number), within)
        return embeddings

    def array(self) -> Float32[ndarray, "rows dim"]:
        """Return all embeddings in memory, with 4 bytes per component."""
        embeddings = np.empty((len(self), self.dim), np.float32)
        for first, block in self.blocks():
            embeddings[first : first + len(block)] = block
        return embeddings


def _plan_of(path: Path, meta: dict[str, Any]) -> EmbeddingPlan:
    if meta.get("kind") != KIND:
        raise StorageError("holds no embeddings", str(path), "give a directory that `raytriever encode` wrote")
    content = {name: value for name, value in meta.items() if name != "kind"}
    plan = conform(content, str(path / MANIFEST), EmbeddingPlan, _REMEDY)
    if min(plan.rows + 1, plan.dim, plan.shard_rows) < 1:
        raise StorageError("the number of rows, dimension or rows per shard is too low", str(path / MANIFEST), _REMEDY)
    return plan


def shard_path(path: Path, key: str, number: int) -> Path:
    """Return the common prefix of the paths of a shard's files."""
    return path / key[:16] / f"{number:06d}"


def file_of(shard: Path, kind: str) -> Path:
    """Return the path of a shard's file of one kind."""
    return shard.with_name(f"{shard.name}.{kind}.npy")
