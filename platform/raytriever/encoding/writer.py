"""Writer of an embedding store: finds the missing shards, writes shards, and commits the store at the end.

A shard depends only on the plan and its number, so every process writes the same bytes, and a finished shard is never
encoded again. It is finished when its report is written, `work/000000.json` with the digests of its files. A shard
whose bytes differ from them is missing.

If the directory has the embeddings of an earlier version of the data set, both are in it until the new store is
finished: their folders have the names of their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.digests import check_directory
from raytriever.data.keys import WIDTH, Keys
from raytriever.encoding.store import (
    KEYS,
    KIND,
    PLAN,
    WORK,
    EmbeddingStore,
    StoredRows,
    by_shard,
    file_of,
    shard_path,
    stored_files,
    stored_values,
)
from raytriever.errors import StorageError, disk_errors, setting
from raytriever.prompts import Side
from raytriever.reading.structured import read_json
from raytriever.store import commit, remote
from raytriever.store.cache import cache_folder
from raytriever.store.capacity import check_disk
from raytriever.store.disk import files_below, fsync, has_content

_SMALLEST, _LARGEST, _SHARDS = 1_024, 65_536, 256
_DURABLE_FROM = 64 << 20  # bytes of a store of the cache that are waited for until the disk has them
_SHARD_BYTES = 1_024  # headers and report of a shard
_LAYOUT = 2  # of the files; another number is another key


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
        return hashlib.sha256(json.dumps([_LAYOUT, decides], sort_keys=True).encode()).hexdigest()

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
        """Bytes of all shards: values, the scales of int8, keys of texts, and headers and reports."""
        row = self.width * {"fp32": 4, "fp16": 2, "int8": 1}[self.dtype] + (4 if self.dtype == "int8" else 0) + WIDTH
        return self.rows * row + self.shards * _SHARD_BYTES

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.shard_rows)

    def rows_of(self, number: int) -> range:
        """Return the positions of a shard."""
        return range(number * self.shard_rows, min(self.rows, (number + 1) * self.shard_rows))


def shard_rows(rows: int) -> int:
    """Return the rows of a shard: up to a few hundred shards, each within size limits."""
    return min(_LARGEST, max(_SMALLEST, -(-rows // _SHARDS)))


@dataclass(frozen=True)
class StoreWriter:
    """Writer of the directory of a store; it is sent to the processes that encode."""

    path: Path
    plan: EmbeddingPlan

    @property
    def folder(self) -> Path:
        """Folder of the shards."""
        return shard_path(self.path, self.plan.key, 0).parent

    @property
    def work(self) -> Path:
        """Folder of the plan, the reports and the attempts of a store that is not finished."""
        return self.folder / WORK

    def check(self) -> None:
        """Raise `StorageError` if the directory has other content than embeddings of versions of the data set."""
        if not self.has_own_content():
            remedy = f"give another {setting('output')}, or remove it"
            raise StorageError("has other content than these embeddings", str(self.path), remedy)

    def has_own_content(self) -> bool:
        """Return true if the directory has no files, or embeddings of a version of the data set by this encoder."""
        own = (self.plan.encoder, self.plan.dataset)
        plans = [plan for plan, _ in stored_files(self.path)]
        return not has_content(self.path) or any((plan["encoder"], plan["dataset"]) == own for plan in plans)

    def begin(self) -> None:
        """Make the folders, or continue an earlier attempt; raises the errors of `check`."""
        self.check()
        written = sum(file.stat().st_size for file in files_below(self.folder)) if self.folder.exists() else 0
        check_disk(self.path, self.plan.bytes - written, "the embeddings")
        self.work.mkdir(parents=True, exist_ok=True)
        described = json.dumps(self._described(), indent=1)
        commit.write_atomically(self.work / PLAN, described, self._is_durable)
        for plan, files in stored_files(self.path):
            shards = by_shard(files) if plan["key"] == self.plan.key else {}
            for number in range(self.plan.shards):  # of a finished store that is damaged: the whole ones stay
                own = shards.get(f"{self.folder.name}/{number:06d}")
                if own and not self._report_file(number).exists():
                    self._report(number, own)

    def missing(self) -> list[int]:
        """Return the numbers of the shards that are missing or damaged."""
        return [number for number in range(self.plan.shards) if not self.is_whole(number)]

    def is_whole(self, number: int) -> bool:
        """Return true if a shard is finished and every byte is as it was written."""
        with suppress(OSError, StorageError):
            files = self._read_report(number)
            commit.check_files(self.path, files)
            commit.check_digests(self.path, files)
            return True
        return False

    def write(
        self,
        number: int,
        embeddings: Float32[ndarray, "encoded width"],
        keys: Keys | None = None,
        copied: StoredRows | None = None,
    ) -> None:
        """Write the files of a shard, and its report.

        Args:
            embeddings: all rows of the shard, except those that are copied.
            keys: keys of the texts of all rows; without them no later encoding copies the rows.
        """
        shard, files = shard_path(self.path, self.plan.key, number), dict[str, commit.FileEntry]()
        values = stored_values(embeddings, self.plan.dtype, copied) | ({} if keys is None else {KEYS: keys})
        with disk_errors(self.path):
            for kind, array in values.items():
                save = partial(np.save, arr=array)
                file = commit.put_file(file_of(shard, kind), self.work, save, self._is_durable)
                files[file.relative_to(self.path).as_posix()] = commit.entry_of(file)
        self._report(number, files)

    def finish(self) -> EmbeddingStore:
        """Commit the store when no shard is missing, and remove the earlier one."""
        remote.pull(self.work, owned=False)  # the reports of other hosts
        files: dict[str, commit.FileEntry] = {}
        for number in range(self.plan.shards):
            files |= self._read_report(number)
        if self._is_durable:
            fsync(self.folder)
        meta = {"kind": KIND, **self._described()}
        manifest = commit.Manifest(format=commit.FORMAT, files=files, meta=meta)
        commit.write_atomically(self.path / commit.MANIFEST, commit.manifest_text(files, meta), self._is_durable)
        check_directory(self.path, manifest=manifest, is_new=True)
        self.remove_others()
        return EmbeddingStore(self.path, meta)

    def remove_others(self) -> None:
        """Remove what a finished store does not need: the work folder, and the embeddings of other versions."""
        commit.remove(self.work)
        for folder in self.path.glob("[0-9a-f]" * len(self.folder.name)):
            if folder != self.folder:
                commit.remove(folder)

    def _report_file(self, number: int) -> Path:
        return self.work / f"{number:06d}.json"

    def _report(self, number: int, files: Mapping[str, commit.FileEntry]) -> None:
        commit.write_atomically(self._report_file(number), json.dumps(files), self._is_durable)

    def _read_report(self, number: int) -> dict[str, commit.FileEntry]:
        return read_json(self._report_file(number), dict[str, commit.FileEntry], "encode again", needed=True)

    @property
    def _is_durable(self) -> bool:
        """Few embeddings in the cache are computed again in minutes, should the machine crash."""
        return self.plan.bytes >= _DURABLE_FROM or not self.path.is_relative_to(cache_folder())

    def _described(self) -> dict[str, Any]:
        return {"key": self.plan.key, "encoder": self.plan.encoder, **asdict(self.plan)}
