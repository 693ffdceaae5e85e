"""Rankings of an exact search that is not finished, from which the same search continues after it was killed.

    FOLDER/search-0123456789abcdef/ranking.npy    the best documents of each query so far, as keys of eight bytes
                                   manifest.json  how many shards of the store these are the best of

The name is a digest of all that decides the result. A ranking that is damaged or missing is searched again. Where none
can be written, the search goes on without."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
from jaxtyping import UInt64
from numpy import ndarray

from raytriever.encoding.store import EmbeddingStore
from raytriever.errors import StorageError
from raytriever.index.ranking import NONE
from raytriever.reading.arrays import read_array
from raytriever.storage import disk_errors
from raytriever.unfinished import UnfinishedWork

_FILE = "ranking.npy"


@dataclass
class UnfinishedSearch:
    """Ranking of a search over the first shards of a store.

    Attributes:
        work: directory of the kept ranking.
        shards: number of shards that have been searched.
        keys: best documents among these of each query, ascending.
    """

    work: UnfinishedWork
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
        """Return the kept ranking of a search, or an empty one.

        Args:
            folder: of the rankings of several searches; None to keep none.
            store, queries, k, ties, exclude: see `search.exact.search_store`; k is at most the number of documents.
        """
        empty = np.full((len(queries), k), NONE)
        if folder is None:
            return cls(UnfinishedWork(None, "a search"), 0, empty)
        arrays = [queries, ties] if exclude is None else [queries, ties, exclude]
        digests = [hashlib.sha256(np.ascontiguousarray(one).data).hexdigest() for one in arrays]
        decides = [store.meta["key"], store.meta["shard_rows"], k, *digests]
        name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
        folder = folder / f"search-{name}"
        work = UnfinishedWork(folder, "a search")
        if "shards" in (meta := work.meta):
            with suppress(StorageError), disk_errors(folder, reading=True):
                keys = read_array(folder / _FILE, ["uint64"], empty.shape, "search again")
                return cls(work, int(meta["shards"]), keys)
        return cls(work, 0, empty)

    def groups(self, shards: int) -> Iterator[range]:
        """Yield the shards that are left, in groups. The caller adds each to `keys`, which are kept between groups.

        A group takes about half of the time from one keeping to the next, and is at most eight times the one before.
        """
        size = 1 if self.work.folder else shards
        while self.shards < shards:
            group = range(self.shards, min(self.shards + size, shards))
            began = monotonic()
            yield group
            each = (monotonic() - began) / len(group)
            self.shards = group.stop
            if self.shards < shards:
                self.work.offer(self._write, self.keys.nbytes, {"shards": self.shards})
            size = max(1, min(8 * size, int(self.work.pause / 2 / max(each, 1e-9))))

    def _write(self, folder: Path) -> None:
        np.save(folder / _FILE, self.keys)
