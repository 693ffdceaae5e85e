"""Embeddings that earlier encodings have: found by their texts, and copied.

A shard has a key for each row, the hash of the text with its prompt. `EmbeddingPlan.encoder` is the digest of
everything else that decides an embedding. A store of the same encoder has the embedding of every text with the same
key, so only the other texts are encoded.

The stores are those in the cache, finished or not, and those that `encode` wrote elsewhere (`store.cache`). A damaged
shard is not used. If a store is removed while its rows are copied, the texts are encoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.digests import check_directory
from raytriever.data.keys import KeyIndex, Keys
from raytriever.encoding.store import KEYS, PLAN, SHARDS, Keyed, StoredPlan, StoredRows, read_stored
from raytriever.encoding.writer import NEXT, WORK, EmbeddingPlan, StoreWriter
from raytriever.errors import StorageError
from raytriever.reading.arrays import read_array
from raytriever.reading.structured import conform, read_json
from raytriever.store.cache import cache_folder, recorded_locations

EMBEDDINGS = "embeddings"
_FILE = "earlier.npy"
_REMEDY = "encode again"


@dataclass(frozen=True)
class EarlierEmbeddings:
    """Places of the embeddings of a new store in earlier stores; sent to the processes that encode.

    Args:
        file: array `[rows, 2]` with the index of an earlier shard and the row in it; -1 for a text without embedding.
        shards: folders of the earlier shards.
    """

    plan: EmbeddingPlan
    file: Path
    shards: Sequence[str]

    def count(self, number: int) -> int:
        """Return the number of rows of a shard that earlier stores have."""
        return int((self._sources(number)[:, 0] >= 0).sum())

    def copy(self, number: int) -> StoredRows | None:
        """Copy the rows of a shard that earlier stores have; None if they cannot be read any more."""
        sources = self._sources(number)
        rows = np.flatnonzero(sources[:, 0] >= 0)
        shards, within = sources[rows].T
        values: dict[str, ndarray] = {}
        for shard in np.unique(shards):
            is_there = shards == shard
            try:
                stored = read_stored(Path(self.shards[shard]), self.plan.dtype, self.plan.width, within[is_there])
            except (OSError, StorageError):
                return None
            for name, part in stored.items():
                whole = values.setdefault(name, np.empty((len(rows), *part.shape[1:]), part.dtype))
                whole[is_there] = part
        return StoredRows(rows, values)

    def _sources(self, number: int) -> ndarray:
        rows = self.plan.rows_of(number)
        return read_array(self.file, ["int32"], (self.plan.rows, 2), _REMEDY, mapped="r")[rows.start : rows.stop]


@activity("looking for embeddings of the same texts")
def find_earlier(
    writer: StoreWriter, missing: Sequence[int], keys_of_rows: Callable[[range], Keys]
) -> EarlierEmbeddings | None:
    """Find the embeddings that earlier stores of the same encoder have, after the `begin` of the writer of the new
    store; None if they have none."""
    stores = _stores(writer) if missing else []
    if not stores:
        return None
    plan = writer.plan
    keys = np.concatenate([keys_of_rows(plan.rows_of(number)) for number in missing])
    index = KeyIndex(keys)
    first = index.first()  # equal texts have one embedding
    sources = np.full((len(keys), 2), -1, np.int32)
    shards: list[str] = []
    for folder, shard_keys in (shard for store in stores for shard in _shards(store)):
        rows = index.find(shard_keys)
        there = np.flatnonzero(rows >= 0)
        new = there[sources[rows[there], 0] < 0]
        if len(new):
            sources[rows[new], 0], sources[rows[new], 1] = len(shards), new
            shards.append(str(folder))
            if (sources[first, 0] >= 0).all():
                break
    if not shards:
        return None
    of_rows = np.full((plan.rows, 2), -1, np.int32)
    of_rows[np.concatenate([np.array(plan.rows_of(number)) for number in missing])] = sources[first]
    file = writer.path / WORK / _FILE
    np.save(file, of_rows)
    return EarlierEmbeddings(plan, file, shards)


def _stores(writer: StoreWriter) -> list[Path]:
    """Return the other stores of the same encoder, the newest first."""
    paths = [writer.path.parent] if writer.path.name == NEXT else []
    paths += [*(cache_folder() / EMBEDDINGS).glob("*"), *recorded_locations()]
    times: dict[str, float] = {}
    for path in paths:
        with suppress(OSError, StorageError):
            if read_json(path / PLAN, StoredPlan, _REMEDY)["encoder"] == writer.plan.encoder:
                times[os.path.realpath(path)] = path.stat().st_mtime
    times.pop(os.path.realpath(writer.path), None)
    return [Path(path) for path in sorted(times, key=lambda path: -times[path])]


def _shards(store: Path) -> Iterator[tuple[Path, Keys]]:
    try:
        planned = read_json(store / PLAN, StoredPlan, _REMEDY)
        folders = sorted(path for path in (store / SHARDS).iterdir() if path.name.isdecimal())
    except (OSError, StorageError):  # removed meanwhile
        return
    for folder in folders:
        with suppress(OSError, StorageError):
            meta = conform(check_directory(folder)["meta"], str(folder), Keyed, _REMEDY)
            keys = read_array(folder / KEYS, ["uint64"], (None, 2), _REMEDY)
            if meta["key"] == planned["key"]:
                yield folder, keys
