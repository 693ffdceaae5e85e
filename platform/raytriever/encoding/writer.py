"""Writer of an embedding store: finds the missing shards, commits shards, and writes the manifest at the end.

A shard depends only on the plan and its number, so every process writes the same bytes, and a valid shard is never
encoded again. A shard that is damaged or changed is not valid.

If the user's directory has the embeddings of an earlier version of the data set, the new store is written to `.next/`
in it, and takes the place of the earlier one when it is finished. A process that is killed in between is continued."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.digests import check_directory
from raytriever.data.keys import WIDTH, Keys
from raytriever.encoding import store
from raytriever.errors import StorageError, setting
from raytriever.prompts import Side
from raytriever.reading.structured import read_json
from raytriever.store import commit
from raytriever.store.cache import cache_folder
from raytriever.store.capacity import check_disk
from raytriever.store.commit import read_manifest
from raytriever.store.disk import files_below, fsync, has_content
from raytriever.store.lock import check_owner
from raytriever.store.parts import Parts

WORK, NEXT = "work", ".next"
_SMALLEST, _LARGEST, _SHARDS = 1_024, 65_536, 256
_DURABLE_FROM = 64 << 20  # bytes of a store of the cache that are waited for until the disk has them
_SHARD_BYTES = 1_024  # manifest and headers of a shard
_SMALLEST_ON_GPU = 16_384  # tens of batches, of which only the last one is not full


@dataclass(frozen=True)
class EmbeddingPlan:
    """Content and settings of a store. The names of the model and the data set are informational.

    Args:
        model: name of the model, as the user passed it.
        model_digest: SHA-256 over weights, tokenizer and all settings that decide an embedding.
        data_digest: digest of the side's ids and texts.
        prefix: text in front of every text.
        length: largest number of tokens of a text, including special tokens.
        pooling, similarity: see `models.config`.
        precision: arithmetic of the encoder, `fp32`, `bf16` or `int8`.
        dtype: storage type; see `store`.
        shard_rows: rows of every shard except the last.
        batch_tokens: tokens per batch, including padding, which decide the last bits; None for a value that suits the
            device of the encoding process.
    """

    model: str
    model_digest: str
    dataset: str
    data_digest: str
    side: Side
    prefix: str
    length: int
    pooling: str
    similarity: str
    precision: str
    dtype: str
    rows: int
    width: int
    shard_rows: int
    batch_tokens: int | None = None

    @property
    def key(self) -> str:
        """SHA-256 over everything that decides the bytes of the store."""
        decides = {name: value for name, value in asdict(self).items() if name not in ("model", "dataset")}
        return hashlib.sha256(json.dumps([commit.FORMAT, decides], sort_keys=True).encode()).hexdigest()

    @property
    def encoder(self) -> str:
        """SHA-256 over everything but the text that decides an embedding and its stored form.

        The prompt is part of the text. The number of tokens per batch is left out: see docs/explanation/decisions.md.
        """
        names = ("model_digest", "side", "length", "pooling", "similarity", "precision", "dtype", "width")
        decides = {name: getattr(self, name) for name in names}
        return hashlib.sha256(json.dumps([commit.FORMAT, decides], sort_keys=True).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """Bytes of all shards: values, the scales of int8, keys of texts, and file headers and manifests."""
        row = self.width * {"fp32": 4, "fp16": 2, "int8": 1}[self.dtype] + (4 if self.dtype == "int8" else 0) + WIDTH
        return self.rows * row + self.shards * _SHARD_BYTES

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.shard_rows)

    def rows_of(self, number: int) -> range:
        """Return the positions of a shard."""
        return range(number * self.shard_rows, min(self.rows, (number + 1) * self.shard_rows))


def shard_rows(rows: int, on_gpu: bool = False) -> int:
    """Return the rows of a shard: up to a few hundred shards, each within size limits."""
    return min(_LARGEST, max(_SMALLEST_ON_GPU if on_gpu else _SMALLEST, -(-rows // _SHARDS)))


def with_shard_rows_of(plan: EmbeddingPlan, path: Path) -> EmbeddingPlan:
    """Return the plan with the size of the shards of an earlier attempt at it, which may be of another device."""
    with suppress(OSError, StorageError):
        stored = read_json(path / store.PLAN, store.StoredPlan, "encode again")
        resumed = replace(plan, shard_rows=stored["shard_rows"])
        if resumed.shard_rows > 0 and resumed.key == stored["key"]:
            return resumed
    return plan


@dataclass(frozen=True)
class StoreWriter:
    """Writer of the directory of a store; it is sent to the processes that encode."""

    path: Path
    plan: EmbeddingPlan

    def check(self) -> bool:
        """Return true if the directory holds an earlier attempt at this plan, false if it is empty or missing.

        Raises:
            StorageError: the directory has other content.
        """
        if not self.has_own_plan():
            remedy = f"give another {setting('output')}, or remove it"
            raise StorageError("has other content than these embeddings", str(self.path), remedy)
        return has_content(self.path)

    def has_own_plan(self) -> bool:
        """Return true if the directory is empty or missing, or holds an earlier attempt at this plan."""
        if not has_content(self.path):
            return True
        with suppress(OSError, StorageError):
            return store.plan_key(self.path) == self.plan.key
        return False

    def begin(self) -> None:
        """Make the directory, or continue an earlier attempt; raises the errors of `check`."""
        continues = self.check()
        written = sum(file.stat().st_size for file in files_below(self.path)) if continues else 0
        check_disk(self.path, self.plan.bytes - written, "the embeddings")
        # Other processes must not read a manifest while shards are written again.
        commit.remove(self.path / commit.MANIFEST)
        (self.path / store.SHARDS).mkdir(parents=True, exist_ok=True)
        (self.path / WORK).mkdir(exist_ok=True)
        if not continues:
            commit.write_atomically(self.path / store.PLAN, json.dumps(self._described(), indent=1), self._is_durable)

    def missing(self) -> list[int]:
        """Return the numbers of the shards that are missing or damaged."""
        return [number for number in range(self.plan.shards) if not self.is_whole(number)]

    def write(
        self,
        number: int,
        embeddings: Float32[ndarray, "encoded width"],
        keys: Keys | None = None,
        copied: store.StoredRows | None = None,
    ) -> None:
        """Commit a shard.

        Args:
            embeddings: all rows of the shard, except those that are copied.
            keys: keys of the texts of all rows; without them no later encoding copies the rows.
        """

        def save(folder: Path) -> None:
            store.write_embeddings(folder, embeddings, self.plan.dtype, copied)
            if keys is not None:
                np.save(folder / store.KEYS, keys)

        self._parts.write(store.shard_folder(self.path, number).name, save)

    def finish(self) -> store.EmbeddingStore:
        """Commit the store when no shard is missing."""
        files: dict[str, commit.FileEntry] = {}
        for number in range(self.plan.shards):
            folder = store.shard_folder(self.path, number)
            manifest = read_manifest(folder, verify=False)
            name = folder.relative_to(self.path).as_posix()
            files |= {f"{name}/{file}": entry for file, entry in manifest["files"].items()}
            files[f"{name}/{commit.MANIFEST}"] = commit.entry_of(folder / commit.MANIFEST)
        files[store.PLAN] = commit.entry_of(self.path / store.PLAN)
        meta = {"kind": store.KIND, **self._described()}
        # Leftovers are from processes that died during a commit.
        for path in (self.path / WORK, self.path / NEXT, *(self.path / store.SHARDS).glob(".*")):
            commit.remove(path)
        commit.write_atomically(self.path / commit.MANIFEST, commit.manifest_text(files, meta), self._is_durable)
        return store.EmbeddingStore(self.path, meta)

    def is_whole(self, number: int) -> bool:
        """Return true if a shard is committed and every byte is as it was written."""
        return bool(self._parts.read(store.shard_folder(self.path, number).name, lambda folder, meta: True))

    @property
    def _parts(self) -> Parts:
        return Parts(self.path / store.SHARDS, self.plan.key, check=check_directory, durable=self._is_durable)

    @property
    def _is_durable(self) -> bool:
        """Few embeddings in the cache are computed again in minutes, should the machine crash."""
        return self.plan.bytes >= _DURABLE_FROM or not self.path.is_relative_to(cache_folder())

    def _described(self) -> dict[str, Any]:
        return {"key": self.plan.key, "encoder": self.plan.encoder, **asdict(self.plan)}


def writer_at(path: Path, plan: EmbeddingPlan) -> StoreWriter:
    """Return the writer of a plan for a directory of the user.

    It writes to `.next/` if the directory has the embeddings of an earlier version of the same data set. A directory
    with any other content is left to `StoreWriter.check`.
    """
    put_next_in_place(path)
    writer = StoreWriter(path, with_shard_rows_of(plan, path))
    following = StoreWriter(path / NEXT, with_shard_rows_of(plan, path / NEXT))
    if writer.has_own_plan() or not _is_earlier_version(path, plan):
        return writer
    if not following.has_own_plan():  # of a version that the data set no longer has
        commit.remove(following.path)
    return following


def put_next_in_place(path: Path) -> None:
    """Replace the store of a directory by the finished one in its `.next/`, if there is one.

    A reader meets the old store, the new one, or none. A process that is killed here is continued by the next call.
    """
    following = path / NEXT
    if not (following / commit.MANIFEST).exists():
        return
    check_owner(path)
    names = (store.SHARDS, store.PLAN, commit.MANIFEST)  # the manifest moves last
    if (following / store.SHARDS).exists():
        for name in (commit.MANIFEST, store.PLAN):
            commit.remove(path / name)
        if (path / store.SHARDS).exists():
            commit.remove(path / store.SHARDS)
    for name in names:
        if (following / name).exists():
            (following / name).rename(path / name)
    commit.remove(following)
    fsync(path)


def _is_earlier_version(path: Path, plan: EmbeddingPlan) -> bool:
    with suppress(OSError, StorageError):
        planned = read_json(path / store.PLAN, store.StoredPlan, "encode again")
        return (planned["encoder"], planned["dataset"]) == (plan.encoder, plan.dataset)
    return False
