"""Fill a finder by FAISS a block of rows at a time, and save it now and then, so that a killed build continues.

    FOLDER/manifest.json    the digest of the file, and the number of rows or of iterations
    FOLDER/index.faiss      the index of the first rows
    FOLDER/centres.npy      or the centres of an inverted file that are being learnt

`store.parts.Savepoint` decides how often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.index.approximate.faiss_finders import Centres, Hnsw, Ivf
from raytriever.progress import Progress
from raytriever.store.cache import keep_within_bound
from raytriever.store.parts import Parts, Savepoint

BLOCK = 1 << 16
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
        folder: Folder of the unfinished finder, named after all that decides it; None to keep none.
    """
    parts = Parts(folder and folder.parent, optional="a build")
    savepoint = Savepoint(parts, folder.name if folder else "")

    def offer(finder: F | Centres, meta: dict[str, int]) -> None:
        if savepoint.offer(finder.save, _COPIES * finder.bytes, meta) and folder is not None:
            keep_within_bound(folder)

    kept = parts.read(savepoint.name, partial(_load, load, embeddings.shape[1]))
    if kept is None or isinstance(kept, Centres):
        kept = begin(kept, lambda centres: offer(centres, {"iterations": centres.iterations}))
    finder, start = kept.reserve(len(embeddings)), kept.index.ntotal
    del kept
    with Progress("index", len(embeddings), "passage", done=start) as progress:
        while start < len(embeddings):
            block = np.ascontiguousarray(embeddings[start : start + BLOCK])
            finder = finder.add(block, threads)
            start += len(block)
            progress.advance(len(block))
            offer(finder, {"rows": start})
    return finder


def _load(load: Callable[[Path, tuple[int, ...]], F], width: int, path: Path, meta: dict[str, Any]) -> F | Centres:
    """Return a saved finder, or the centres of one."""
    if "iterations" in meta:
        return Centres.load(path, width, int(meta["iterations"]))
    return load(path, (int(meta["rows"]), width))
