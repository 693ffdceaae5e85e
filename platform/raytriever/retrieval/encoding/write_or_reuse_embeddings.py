"""Writer of an embedding store. It finds the missing shards, writes them, and commits the store at the end.

A shard depends only on the plan and its number, so every process writes the same bytes, and a finished shard is never
encoded again. A shard is finished when its report is written, such as `work/000000.json`. The report holds the
digests of the shard's files. If a file no longer has its digest, the shard is encoded again.

Embeddings of an earlier version of the data set stay in the directory until the new store is finished. The folder of
each version is named after its key.

Embeddings that an earlier store has are copied. The key of a row is the hash of its text with the prompt.
`EmbeddingPlan.encoder` is the digest of everything else that decides an embedding. So in a store of the same encoder,
the same key means the same embedding, and only the other texts are encoded. Earlier stores are those in the cache,
finished or not, and other directories that `encode` wrote (`store.cache`). Damaged shards are ignored. If a store is
removed while its rows are copied, the texts of these rows are encoded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int32
from numpy import ndarray

from raytriever.core.errors import StorageError, disk_errors, setting
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import read_array
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store import commit, remote_folders
from raytriever.core.store.cache import cache_folder, recorded_locations
from raytriever.core.store.capacity import check_disk
from raytriever.core.store.disk import files_below, fsync, has_content
from raytriever.data.file_digests import check_directory
from raytriever.data.hashed_ids import KeyIndex, Keys
from raytriever.retrieval.encoding.embedding_store import (
    KEYS,
    KIND,
    PLAN,
    WORK,
    EmbeddingPlan,
    EmbeddingStore,
    StoredRows,
    by_shard,
    file_of,
    read_stored,
    shard_path,
    stored_files,
    stored_values,
)

EMBEDDINGS = "embeddings"  # folder of the stores in the cache
_SMALLEST, _LARGEST, _SHARDS = 1_024, 65_536, 256
_DURABLE_FROM = 64 << 20  # a store in the cache is synced to disk if it has at least this many bytes


def shard_rows(rows: int) -> int:
    """Return the number of rows per shard of a store: a 256th of all rows, but at least 1,024 and at most 65,536."""
    return min(_LARGEST, max(_SMALLEST, -(-rows // _SHARDS)))


@dataclass(frozen=True)
class StoreWriter:
    """Writer of a store's directory. This object is sent to the processes that encode."""

    path: Path
    plan: EmbeddingPlan
    is_temporary: bool = False  # True if it is removed soon, and no other store has its weights: it needs no keys

    @property
    def folder(self) -> Path:
        """Folder of the shards."""
        return shard_path(self.path, self.plan.key, 0).parent

    @property
    def work(self) -> Path:
        """Folder of the plan, the reports and the attempts of a store that is not finished."""
        return self.folder / WORK

    def check(self) -> None:
        """Raise `StorageError` if the directory has other content than embeddings of this encoder and data set."""
        if not self.has_own_content():
            what = f"is not empty, and has no embeddings of {self.plan.dataset} by this encoder"
            raise StorageError(what, str(self.path), f"give another {setting('output')}, or remove this one")

    def has_own_content(self) -> bool:
        """Return True if the directory is empty, or holds this encoder's embeddings of any version of the data set."""
        own = (self.plan.encoder, self.plan.dataset)
        plans = [plan for plan, _ in stored_files(self.path)]
        return not has_content(self.path) or any((plan.encoder, plan.dataset) == own for plan in plans)

    def begin(self) -> None:
        """Create the folders, or continue an earlier attempt. Raises the errors of `check`."""
        self.check()
        written = sum(file.stat().st_size for file in files_below(self.folder)) if self.folder.exists() else 0
        check_disk(self.path, self.plan.bytes - written, "the embeddings")
        self.work.mkdir(parents=True, exist_ok=True)
        commit.write_atomically(self.work / PLAN, json.dumps(asdict(self.plan), indent=1), self._is_durable)
        for plan, files in stored_files(self.path):
            shards = by_shard(files) if plan.key == self.plan.key else {}
            for number in range(self.plan.shards):  # if a finished store is damaged, its intact shards stay
                own = shards.get(f"{self.folder.name}/{number:06d}")
                if own and not self._report_file(number).exists():
                    self._report(number, own)

    def missing(self) -> list[int]:
        """Return the numbers of the shards that are missing or damaged."""
        return [number for number in range(self.plan.shards) if not self.is_whole(number)]

    def is_whole(self, number: int) -> bool:
        """Return True if a shard is finished and every byte is unchanged."""
        with suppress(OSError, StorageError):
            files = self._read_report(number)
            commit.check_files(self.path, files)
            commit.check_digests(self.path, files)
            return True
        return False

    def write(
        self,
        number: int,
        embeddings: Float32[ndarray, "encoded dim"],
        keys: Keys | None = None,
        copied: StoredRows | None = None,
    ) -> None:
        """Write the files of a shard and its report.

        Args:
            embeddings: all rows of the shard, except those that are copied.
            keys: keys of the texts of all rows; without them no later encoding can copy the rows.
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
        """Commit the store, which must have all shards, and remove the store of an earlier version."""
        remote_folders.pull(self.work, owned=False)  # fetch the reports of other hosts
        files: dict[str, commit.FileEntry] = {}
        for number in range(self.plan.shards):
            files |= self._read_report(number)
        if self._is_durable:
            fsync(self.folder)
        meta = {"kind": KIND, **asdict(self.plan)}
        manifest = commit.Manifest(format=commit.FORMAT, files=files, meta=meta)
        commit.write_atomically(self.path / commit.MANIFEST, commit.manifest_text(files, meta), self._is_durable)
        check_directory(self.path, manifest=manifest, is_new=True)
        self.remove_others()
        return EmbeddingStore(self.path, self.plan)

    def remove_others(self) -> None:
        """Remove files that a finished store does not need: the work folder and the embeddings of other versions."""
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
        """True if files are synced to disk. A small cached store is not synced: it can be encoded again in minutes."""
        is_kept = not self.is_temporary and not self.path.is_relative_to(cache_folder())
        return is_kept or self.plan.bytes >= _DURABLE_FROM


@dataclass(frozen=True)
class EarlierEmbeddings:
    """Places in earlier stores from which a new store copies embeddings. It is sent to the processes that encode."""

    plan: EmbeddingPlan
    # For each row of the new store, an index into `shards` and the row in that shard; -1 if no shard has the embedding.
    sources: Int32[ndarray, "rows 2"]
    shards: Sequence[Path]  # paths of the earlier shards

    def count(self, number: int) -> int:
        """Return how many rows of a shard are also in earlier stores."""
        return int((self._sources(number)[:, 0] >= 0).sum())

    def copy(self, number: int) -> StoredRows | None:
        """Copy those rows of a shard that are also in earlier stores. Return None if a store can no longer be read."""
        sources = self._sources(number)
        rows = np.flatnonzero(sources[:, 0] >= 0)
        shards, within = sources[rows].T
        values: dict[str, ndarray] = {}
        for shard in np.unique(shards):
            is_there = shards == shard
            try:
                stored = read_stored(self.shards[shard], self.plan.dtype, self.plan.dim, within[is_there])
            except (OSError, StorageError):
                return None
            for name, part in stored.items():
                whole = values.setdefault(name, np.empty((len(rows), *part.shape[1:]), part.dtype))
                whole[is_there] = part
        return StoredRows(rows, values)

    def _sources(self, number: int) -> ndarray:
        rows = self.plan.rows_of(number)
        return self.sources[rows.start : rows.stop]


@activity("looking for embeddings of the same texts")
def find_earlier(
    writer: StoreWriter, missing: Sequence[int], keys_of_rows: Callable[[range], Keys]
) -> EarlierEmbeddings | None:
    """Find texts of the missing shards in earlier stores of the same encoder. Return None if there are none."""
    earlier = list(_earlier_shards(writer)) if missing and not writer.is_temporary else []
    if not earlier:
        return None
    plan = writer.plan
    keys = np.concatenate([keys_of_rows(plan.rows_of(number)) for number in missing])
    index = KeyIndex(keys)
    first = index.first()  # equal texts have equal embeddings, so the first row with a text is enough
    found, shards = np.full((len(keys), 2), -1, np.int32), list[Path]()
    for store, shard, files in earlier:
        with suppress(OSError, StorageError):  # the store is damaged, or was just removed
            commit.check_files(store, files)
            rows = index.find(read_array(file_of(shard, KEYS), ["uint64"], (None, 2), "encode again"))
            there = np.flatnonzero(rows >= 0)
            new = there[found[rows[there], 0] < 0]
            if len(new):
                commit.check_digests(store, files)
                found[rows[new], 0], found[rows[new], 1] = len(shards), new
                shards.append(shard)
                if (found[first, 0] >= 0).all():
                    break
    if not shards:
        return None
    sources = np.full((plan.rows, 2), -1, np.int32)
    sources[np.concatenate([np.array(plan.rows_of(number)) for number in missing])] = found[first]
    return EarlierEmbeddings(plan, sources, shards)


def _earlier_shards(writer: StoreWriter) -> Iterator[tuple[Path, Path, Mapping[str, commit.FileEntry]]]:
    """Yield the finished shards of other stores of the same encoder, the newest store first. For each shard, yield the
    directory of its store, its path and its files.

    A store of the same texts in another directory is another store too."""
    times: dict[str, float] = {}
    for path in (writer.path, *(cache_folder() / EMBEDDINGS).glob("*"), *recorded_locations()):
        with suppress(OSError):
            times[os.path.realpath(path)] = path.stat().st_mtime
    for store in map(Path, sorted(times, key=lambda path: -times[path])):
        for plan, files in stored_files(store):
            is_own = store == Path(os.path.realpath(writer.path)) and plan.key == writer.plan.key
            if plan.encoder == writer.plan.encoder and not is_own:
                yield from ((store, store / shard, tensors) for shard, tensors in by_shard(files).items())
