"""Embeddings that earlier encodings have: found by their texts, and copied.

A shard has a key for each row, the hash of the text with its prompt. `EmbeddingPlan.encoder` is the digest of
everything else that decides an embedding. A store of the same encoder has the embedding of every text with the same
key, so only the other texts are encoded.

The stores are those in the cache, finished or not, and those that `encode` wrote elsewhere (`store.cache`). A damaged
shard is not used. If a store is removed while its rows are copied, the texts are encoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.keys import KeyIndex, Keys
from raytriever.encoding.store import KEYS, StoredRows, by_shard, file_of, read_stored, stored_files
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter
from raytriever.errors import StorageError
from raytriever.reading.arrays import read_array
from raytriever.store.cache import cache_folder, recorded_locations
from raytriever.store.commit import FileEntry, check_digests, check_files

EMBEDDINGS = "embeddings"
_REMEDY = "encode again"


@dataclass(frozen=True)
class EarlierEmbeddings:
    """Places of the embeddings of a new store in earlier stores; sent to the processes that encode.

    Args:
        sources: index of an earlier shard and the row in it, for each row; -1 for a text without embedding.
        shards: paths of the earlier shards.
    """

    plan: EmbeddingPlan
    sources: Int32[ndarray, "rows 2"]
    shards: Sequence[Path]

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
                stored = read_stored(self.shards[shard], self.plan.dtype, self.plan.width, within[is_there])
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
    """Find the embeddings that earlier stores of the same encoder have; None if they have none."""
    earlier = list(_earlier_shards(writer)) if missing else []
    if not earlier:
        return None
    plan = writer.plan
    keys = np.concatenate([keys_of_rows(plan.rows_of(number)) for number in missing])
    index = KeyIndex(keys)
    first = index.first()  # equal texts have one embedding
    found, shards = np.full((len(keys), 2), -1, np.int32), list[Path]()
    for store, shard, files in earlier:
        with suppress(OSError, StorageError):  # damaged, or removed meanwhile
            check_files(store, files)
            rows = index.find(read_array(file_of(shard, KEYS), ["uint64"], (None, 2), _REMEDY))
            there = np.flatnonzero(rows >= 0)
            new = there[found[rows[there], 0] < 0]
            if len(new):
                check_digests(store, files)
                found[rows[new], 0], found[rows[new], 1] = len(shards), new
                shards.append(shard)
                if (found[first, 0] >= 0).all():
                    break
    if not shards:
        return None
    sources = np.full((plan.rows, 2), -1, np.int32)
    sources[np.concatenate([np.array(plan.rows_of(number)) for number in missing])] = found[first]
    return EarlierEmbeddings(plan, sources, shards)


def _earlier_shards(writer: StoreWriter) -> Iterator[tuple[Path, Path, Mapping[str, FileEntry]]]:
    """Yield the finished shards of other stores of the same encoder, those of the newest store first: the directory of
    the store, the path of the shard, and its files."""
    times: dict[str, float] = {}
    for path in (writer.path, *(cache_folder() / EMBEDDINGS).glob("*"), *recorded_locations()):
        with suppress(OSError):
            times[os.path.realpath(path)] = path.stat().st_mtime
    for store in map(Path, sorted(times, key=lambda path: -times[path])):
        for plan, files in stored_files(store):
            if plan["encoder"] == writer.plan.encoder and plan["key"] != writer.plan.key:
                yield from ((store, store / shard, own) for shard, own in by_shard(files).items())
