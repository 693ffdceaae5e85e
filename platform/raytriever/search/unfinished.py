"""Rankings of an exact search that is not finished, from which the same search continues after it was killed.

    FOLDER/search-0123456789abcdef/ranking.npy    the best documents of each query so far, as keys of eight bytes
                                   manifest.json  how many shards of the store these are the best of

The name is a digest of all that decides the result; see `store.parts`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from jaxtyping import UInt64
from numpy import ndarray

from raytriever.encoding.store import EmbeddingStore
from raytriever.index.ranking import NONE
from raytriever.reading.arrays import read_array
from raytriever.store.parts import Parts, Savepoint

_FILE = "ranking.npy"


@dataclass
class UnfinishedSearch:
    """Ranking of a search over the first shards of a store.

    Attributes:
        savepoint: where the ranking is saved.
        shards: number of shards that have been searched.
        keys: best documents among these of each query, ascending.
    """

    savepoint: Savepoint
    shards: int
    keys: UInt64[ndarray, "queries k"]

    @classmethod
    def of(
        cls,
        folder: Path | None,
        store: EmbeddingStore,
        queries: ndarray,
        k: int,
        ties: ndarray,
        exclude: ndarray | None,
    ) -> UnfinishedSearch:
        """Return the saved ranking of a search, or an empty one.

        Args:
            folder: Folder of the rankings of several searches; None to save none.
            store, queries, k, ties, exclude: see `search.exact.search_store`; k is at most the number of documents.
        """
        empty = np.full((len(queries), k), NONE)
        name = "" if folder is None else _name(store, queries, k, ties, exclude)
        savepoint = Savepoint(Parts(folder, optional="a search"), name)

        def load(path: Path, meta: dict[str, Any]) -> tuple[int, ndarray]:
            return int(meta["shards"]), read_array(path / _FILE, ["uint64"], empty.shape, "search again")

        return cls(savepoint, *(savepoint.parts.read(name, load) or (0, empty)))

    def groups(self, shards: int) -> Iterator[range]:
        """Yield the shards that are left, in groups. The caller adds each to `keys`, which are saved between groups.

        A group takes about half of the time from one saving to the next, and is at most eight times the one before.
        """
        size = 1 if self.savepoint.parts.folder else shards
        while self.shards < shards:
            group = range(self.shards, min(self.shards + size, shards))
            began = monotonic()
            yield group
            each = (monotonic() - began) / len(group)
            self.shards = group.stop
            if self.shards < shards:
                self.savepoint.offer(partial(_save, self.keys), self.keys.nbytes, {"shards": self.shards})
            size = max(1, min(8 * size, int(self.savepoint.pause / 2 / max(each, 1e-9))))


def _name(store: EmbeddingStore, queries: ndarray, k: int, ties: ndarray, exclude: ndarray | None) -> str:
    arrays = [queries, ties] if exclude is None else [queries, ties, exclude]
    digests = [hashlib.sha256(np.ascontiguousarray(one).data).hexdigest() for one in arrays]
    decides = [store.meta["key"], store.meta["shard_rows"], k, *digests]
    return f"search-{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"


def _save(keys: ndarray, path: Path) -> None:
    np.save(path / _FILE, keys)
