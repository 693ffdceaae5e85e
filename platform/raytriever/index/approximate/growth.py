"""Fill a finder by FAISS a block of rows at a time, and keep it now and then, so that a killed build continues.

    FOLDER/manifest.json    the digest of the index, and the number of its rows
    FOLDER/index.faiss      the index of the first rows

A build that takes less than `LEAST_SECONDS` keeps nothing. Keeping takes at most the share `MOST_SHARE` of the time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TypeVar

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.cache import keep_within_bound
from raytriever.capacity import check_disk
from raytriever.errors import StorageError
from raytriever.index.approximate.faiss_finders import Hnsw, Ivf
from raytriever.progress import Progress
from raytriever.storage import committed_directory, disk_errors, read_manifest
from raytriever.terminal import warn

BLOCK = 1 << 16
LEAST_SECONDS, MOST_SHARE = 60.0, 0.05
# Copies that the disk must have room for: the one that is written, that before it, and the finished index.
_COPIES = 3

F = TypeVar("F", Ivf, Hnsw)


def grow(
    begin: Callable[[], F],
    load: Callable[[Path, tuple[int, ...]], F],
    embeddings: Float32[ndarray, "rows width"],
    threads: int,
    folder: Path | None = None,
) -> F:
    """Return a finder of all rows.

    Args:
        begin: makes a finder without rows.
        load: reads the files of a finder over embeddings of a shape.
        embeddings: finite embeddings, in memory or memory-mapped.
        threads: see `Finder.find`.
        folder: of the unfinished finder, named after all that decides it; None to keep none.
    """
    began = monotonic()
    finder = _kept(load, embeddings.shape[1], folder) or begin()
    start, seconds = finder.index.ntotal, 0.0
    finder.reserve(len(embeddings))
    with Progress("index", len(embeddings), "passage", done=start) as progress:
        while start < len(embeddings):
            block = np.ascontiguousarray(embeddings[start : start + BLOCK])
            finder = finder.add(block, threads)
            start += len(block)
            progress.advance(len(block))
            if folder is not None and monotonic() - began >= max(LEAST_SECONDS, seconds / MOST_SHARE):
                try:
                    seconds = _keep(finder, folder)
                except StorageError as error:
                    warn(f"the unfinished index is not kept, so a build that is stopped begins again: {error}")
                    folder = None
                began = monotonic()
    return finder


def _kept(load: Callable[[Path, tuple[int, ...]], F], width: int, folder: Path | None) -> F | None:
    """Return the unfinished finder; None if there is none or it is damaged."""
    if folder is not None:
        with suppress(StorageError):
            return load(folder, (int(read_manifest(folder)["meta"]["rows"]), width))
    return None


def _keep(finder: Ivf | Hnsw, folder: Path) -> float:
    """Write a finder, and return the seconds that it took.

    Raises:
        StorageError: the disk has no room or is not writable.
    """
    before = monotonic()
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        check_disk(folder, _COPIES * finder.bytes, "copies of the unfinished index")
        with committed_directory(folder, {"rows": finder.index.ntotal}, replace=folder.exists()) as aside:
            finder.save(aside)
        keep_within_bound(folder)
    return monotonic() - before
