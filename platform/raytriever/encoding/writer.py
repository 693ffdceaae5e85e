"""Writer of an embedding store: which shards exist, which are missing, and the manifest at the end.

A shard depends on the plan and its number alone, so every process that makes it writes the same bytes, and a valid
shard is never made again. A shard that is torn or changed is not valid."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from numpy import ndarray

from raytriever.data.digests import check_directory
from raytriever.data.quarantine import QUARANTINE, QuarantineReport, bad_entry
from raytriever.encoding.crashes import CrashRecord
from raytriever.encoding.store import (
    KIND,
    PLAN,
    SHARDS,
    VERSION,
    EmbeddingStore,
    Keyed,
    plan_key,
    shard_folder,
    write_embeddings,
)
from raytriever.errors import StorageError
from raytriever.models.retriever import Side
from raytriever.reading.structured import conform
from raytriever.storage import (
    MANIFEST,
    FileEntry,
    committed_directory,
    disk_errors,
    read_manifest,
    sha256_of,
    write_atomically,
)

WORK = "work"
_SMALLEST, _LARGEST, _SHARDS = 1_024, 65_536, 256


@dataclass(frozen=True)
class EmbeddingPlan:
    """What a store is to hold.

    Args:
        model: as the user named it, for people.
        model_digest: SHA-256 over weights, tokenizer and all settings that decide an embedding.
        dataset: its name, for people.
        data_digest: of the side's ids and texts.
        side: `passage` or `query`.
        prefix: in front of every text.
        length: of the longest text in tokens, special tokens included.
        pooling, similarity: see `models.config`.
        precision: the encoder's arithmetic, `fp32` or `bf16`.
        dtype: how embeddings are kept; see `embedding_dtypes`.
        rows, width: of the matrix.
        shard_rows: rows of every shard but the last.
        batch_tokens: tokens of a batch, padding included, which decide the last bits; None for what suits the device
            of whoever encodes.
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
        """SHA-256 over all that decides a byte; names are for people."""
        decides = {name: value for name, value in asdict(self).items() if name not in ("model", "dataset")}
        return hashlib.sha256(json.dumps([VERSION, decides], sort_keys=True).encode()).hexdigest()

    @property
    def shards(self) -> int:
        """How many there are."""
        return -(-self.rows // self.shard_rows)

    def rows_of(self, number: int) -> range:
        """The positions of a shard."""
        return range(number * self.shard_rows, min(self.rows, (number + 1) * self.shard_rows))


def shard_rows(rows: int) -> int:
    """How large shards are: some hundreds of them where that leaves them of use, never too large for memory."""
    return min(_LARGEST, max(_SMALLEST, -(-rows // _SHARDS)))


@dataclass(frozen=True)
class StoreWriter:
    """The directory of a store that is being made; sent to the processes that make it."""

    path: Path
    plan: EmbeddingPlan

    def check(self) -> bool:
        """Whether an earlier attempt left something there.

        Raises:
            StorageError: it holds something else.
        """
        there = self._is_there()
        if there and not self.is_ours():
            raise StorageError(
                "holds something else than these embeddings", str(self.path), "give another --output, or remove it"
            )
        return there

    def is_ours(self) -> bool:
        """Whether the directory is empty, or holds an earlier attempt at the same plan."""
        return not self._is_there() or _key_of(self.path) == self.plan.key

    def _is_there(self) -> bool:
        with disk_errors(self.path, reading=True):
            return self.path.is_dir() and any(self.path.iterdir())

    def begin(self) -> None:
        """Make the directory, or find it as an earlier attempt left it; raises what `check` raises."""
        there = self.check()
        with disk_errors(self.path):
            # Whoever looks meanwhile must not find a manifest of shards that are made anew.
            (self.path / MANIFEST).unlink(missing_ok=True)
            (self.path / SHARDS).mkdir(parents=True, exist_ok=True)
            (self.path / WORK).mkdir(exist_ok=True)
            for file in (self.path / WORK).glob("*.json"):
                CrashRecord.read(file).forgive_loading()
        if not there:
            write_atomically(self.path / PLAN, json.dumps({"key": self.plan.key, **asdict(self.plan)}, indent=1))

    def missing(self) -> list[int]:
        """The shards that are not there, or not whole."""
        return [number for number in range(self.plan.shards) if not self.is_whole(number)]

    def write(self, number: int, embeddings: Float32[ndarray, "rows width"], left_out: Mapping[int, str]) -> None:
        """Commit a shard; `left_out` tells of its rows, by position in the data set, why they have no embedding."""
        meta = {"key": self.plan.key, "left_out": {str(row): reason for row, reason in sorted(left_out.items())}}
        with committed_directory(shard_folder(self.path, number), meta, replace=True) as aside:
            write_embeddings(aside, embeddings, self.plan.dtype)

    def finish(self, where: str, texts: Any) -> EmbeddingStore:
        """Commit the whole, of which no shard is missing.

        Args:
            where: names the rows in the quarantine.
            texts: of all rows, read for those in the quarantine only.
        """
        files: dict[str, FileEntry] = {}
        left_out: dict[int, str] = {}
        for number in range(self.plan.shards):
            folder = shard_folder(self.path, number)
            manifest = read_manifest(folder, verify=False)
            name = folder.relative_to(self.path).as_posix()
            files |= {f"{name}/{file}": entry for file, entry in manifest["files"].items()}
            files[f"{name}/{MANIFEST}"] = _entry(folder / MANIFEST)
            left_out |= {int(row): reason for row, reason in manifest["meta"]["left_out"].items()}
        entries = [bad_entry(where, row + 1, left_out[row], texts[row].encode()) for row in sorted(left_out)]
        QuarantineReport(tuple(entries)).write(self.path)
        files |= {name: _entry(self.path / name) for name in (PLAN, QUARANTINE) if (self.path / name).exists()}
        meta = {"kind": KIND, "version": VERSION, "key": self.plan.key, **asdict(self.plan), "left_out": [*left_out]}
        with disk_errors(self.path):
            shutil.rmtree(self.path / WORK, ignore_errors=True)
            for leftover in (self.path / SHARDS).glob(".*"):  # of processes that died while they committed
                shutil.rmtree(leftover, ignore_errors=True)
        write_atomically(self.path / MANIFEST, json.dumps({"files": files, "meta": meta}, indent=1))
        return EmbeddingStore(self.path, meta)

    def is_whole(self, number: int) -> bool:
        """Whether a shard stands, and every byte of it is as it was written."""
        folder = shard_folder(self.path, number)
        try:
            check_directory(folder)
            meta = conform(read_manifest(folder, verify=False)["meta"], str(folder), _ShardMeta, "encode again")
        except StorageError:
            return False
        rows = self.plan.rows_of(number)
        return meta["key"] == self.plan.key and all(row.isdecimal() and int(row) in rows for row in meta["left_out"])


class _ShardMeta(Keyed):
    left_out: dict[str, str]


def _key_of(path: Path) -> str | None:
    with suppress(OSError, StorageError):
        return plan_key(path)
    return None


def _entry(file: Path) -> FileEntry:
    return {"size": file.stat().st_size, "sha256": sha256_of(file)}
