"""Rankings of an exact search that is not finished, from which the same search continues after it was killed.

    FOLDER/search-0123456789abcdef/ranking.npy    the best documents of each query so far, as keys of eight bytes
                                   manifest.json  how many shards of the store these are the best of

The name is a digest of all that decides the result. A ranking that is damaged or missing is searched again. Where none
can be written, the search goes on without."""

from __future__ import annotations

import hashlib
import json
import shutil
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
from raytriever.storage import committed_directory, disk_errors, read_manifest
from raytriever.terminal import warn

# A ranking is kept after so many seconds of searching, or later: keeping it takes at most this share of the time.
LEAST_SECONDS, MOST_SHARE = 20.0, 0.05
_FILE = "ranking.npy"


@dataclass
class UnfinishedSearch:
    """Ranking of a search over the first shards of a store.

    Attributes:
        folder: of the kept ranking; None to keep none.
        shards: number of shards that have been searched.
        keys: best documents among these of each query, ascending.
    """

    folder: Path | None
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
            return cls(None, 0, empty)
        arrays = [queries, ties] if exclude is None else [queries, ties, exclude]
        digests = [hashlib.sha256(np.ascontiguousarray(one).data).hexdigest() for one in arrays]
        decides = [store.meta["key"], store.meta["shard_rows"], k, *digests]
        name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]
        folder = folder / f"search-{name}"
        with suppress(StorageError), disk_errors(folder, reading=True):
            shards = int(read_manifest(folder)["meta"]["shards"])
            return cls(folder, shards, read_array(folder / _FILE, ["uint64"], empty.shape, "search again"))
        return cls(folder, 0, empty)

    def groups(self, shards: int) -> Iterator[range]:
        """Yield the shards that are left, in groups. The caller adds each to `keys`, which are kept between groups.

        A group is so large that `LEAST_SECONDS` and `MOST_SHARE` hold, and at most eight times the one before.
        """
        size, pause = 1 if self.folder else shards, LEAST_SECONDS
        while self.shards < shards:
            group = range(self.shards, min(self.shards + size, shards))
            began = monotonic()
            yield group
            each = (monotonic() - began) / len(group)
            self.shards = group.stop
            if self.shards < shards and each * len(group) >= pause / 2:
                pause = max(LEAST_SECONDS, self._keep() / MOST_SHARE)
            size = max(1, min(8 * size, int(pause / max(each, 1e-9))))

    def _keep(self) -> float:
        """Write the ranking; return the seconds that it took. After one that cannot be written, none is kept."""
        began = monotonic()
        if self.folder is not None:
            try:
                with committed_directory(self.folder, {"shards": self.shards}, replace=True) as aside:
                    np.save(aside / _FILE, self.keys)
            except StorageError as error:
                warn(f"an unfinished search is not kept, so a search that is stopped begins again: {error}")
                self.folder = None
        return monotonic() - began

    def remove(self) -> None:
        """Remove the kept ranking, once the search has ended."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
