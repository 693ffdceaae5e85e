"""Fill a finder by FAISS a block of rows at a time, and keep it now and then, so that a killed build continues.

    FOLDER/manifest.json    the digest of the file, and the number of rows or of iterations
    FOLDER/index.faiss      the index of the first rows
    FOLDER/centres.npy      or the centres of an inverted file that are being learnt

A build that takes less than `LEAST_SECONDS` keeps nothing. Keeping takes at most the share `MOST_SHARE` of the time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TypeVar

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.cache import keep_within_bound
from raytriever.capacity import check_disk
from raytriever.errors import StorageError
from raytriever.index.approximate.faiss_finders import Centres, Hnsw, Ivf
from raytriever.progress import Progress
from raytriever.storage import committed_directory, disk_errors, read_manifest
from raytriever.terminal import warn

BLOCK = 1 << 16
LEAST_SECONDS, MOST_SHARE = 60.0, 0.05
# Copies that the disk must have room for: the one that is written, that before it, and the finished index.
_COPIES = 3

F = TypeVar("F", Ivf, Hnsw)


def grow(
    begin: Callable[[Centres | None, Callable[[Centres], None]], F],
    load: Callable[[Path, tuple[int, ...]], F],
    embeddings: Float32[ndarray, "rows width"],
    threads: int,
    folder: Path | None = None,
) -> F:
    """Return a finder of all rows.

    Args:
        begin: makes a finder without rows, from kept centres or None, and calls a function with the centres to keep.
        load: reads the files of a finder over embeddings of a shape.
        embeddings: finite embeddings, in memory or memory-mapped.
        threads: see `Finder.find`.
        folder: of the unfinished finder, named after all that decides it; None to keep none.
    """
    keeper = _Keeper(folder)
    kept = keeper.read(load, embeddings.shape[1])
    if kept is None or isinstance(kept, Centres):
        kept = begin(kept, lambda centres: keeper.offer(centres, {"iterations": centres.iterations}))
    finder, start = kept, kept.index.ntotal
    finder.reserve(len(embeddings))
    with Progress("index", len(embeddings), "passage", done=start) as progress:
        while start < len(embeddings):
            block = np.ascontiguousarray(embeddings[start : start + BLOCK])
            finder = finder.add(block, threads)
            start += len(block)
            progress.advance(len(block))
            keeper.offer(finder, {"rows": start})
    return finder


@dataclass
class _Keeper:
    """Keeps what is unfinished, from time to time.

    Attributes:
        folder: of what is kept; None to keep nothing.
        began: when something was kept last.
        seconds: that this took.
    """

    folder: Path | None
    began: float = field(default_factory=monotonic)
    seconds: float = 0.0

    def read(self, load: Callable[[Path, tuple[int, ...]], F], width: int) -> F | Centres | None:
        """Return the unfinished finder, or its centres; None if there is none or it is damaged."""
        if self.folder is not None:
            with suppress(StorageError):
                meta = read_manifest(self.folder)["meta"]
                if "iterations" in meta:
                    return Centres.load(self.folder, width, int(meta["iterations"]))
                return load(self.folder, (int(meta["rows"]), width))
        return None

    def offer(self, unfinished: Centres | Ivf | Hnsw, meta: dict[str, int]) -> None:
        """Keep what is unfinished, if it is time. After what cannot be kept, nothing is."""
        if self.folder is None or monotonic() - self.began < max(LEAST_SECONDS, self.seconds / MOST_SHARE):
            return
        before = monotonic()
        try:
            with disk_errors(self.folder):
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                check_disk(self.folder, _COPIES * unfinished.bytes, "copies of the unfinished index")
                with committed_directory(self.folder, meta, replace=self.folder.exists()) as aside:
                    unfinished.save(aside)
                keep_within_bound(self.folder)
        except StorageError as error:
            warn(f"the unfinished index is not kept, so a build that is stopped begins again: {error}")
            self.folder = None
        self.began = monotonic()
        self.seconds = self.began - before
