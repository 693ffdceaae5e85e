"""Approximate indexes as committed directories.

    DIR/manifest.json      the digest of every file, and what was built from what
    DIR/embeddings.npy     the embeddings, read where they lie
    DIR/documents.npy      the document of each row
    DIR/ties.npy           the corpus's order of equal scores
    DIR/finder/            the finder's own files

A directory is opened only after every byte was held against its digest, since FAISS and SVS trust what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.digests import check_directory
from raytriever.errors import StorageError
from raytriever.index.approximate.faiss_finders import Flat, Hnsw, Ivf
from raytriever.index.approximate.index import ApproximateIndex, Finder
from raytriever.index.approximate.roargraph import RoarGraph
from raytriever.index.approximate.vamana import Vamana
from raytriever.reading.arrays import read_array
from raytriever.reading.structured import conform
from raytriever.storage import MANIFEST, committed_directory, disk_errors, read_manifest

KIND, VERSION = "index", 1
FINDER = "finder"
_REMEDY = "build the index again"
_ARRAYS = ("embeddings", "documents", "ties")

# How each kind is read: its folder, the embeddings, and what it was built with.
_READ: dict[str, Callable[[Path, ndarray, Mapping[str, Any]], Finder]] = {
    "flat": lambda folder, embeddings, built: Flat(embeddings),
    "ivf": lambda folder, embeddings, built: Ivf.load(folder, embeddings.shape),
    "ivfpq": lambda folder, embeddings, built: Ivf.load(folder, embeddings.shape),
    "hnsw": lambda folder, embeddings, built: Hnsw.load(folder, embeddings.shape),
    "vamana": lambda folder, embeddings, built: Vamana.load(folder, built["degree"], embeddings.shape),
    "roargraph": lambda folder, embeddings, built: RoarGraph.load(folder, embeddings),
}
KINDS = tuple(_READ)


class _Meta(TypedDict):
    rows: int
    width: int
    effort: int


class _VamanaMeta(_Meta):
    degree: int


def write_index(path: Path, index: ApproximateIndex, kind: str, meta: Mapping[str, Any], replace: bool = False) -> None:
    """Write an index so that it appears whole or not at all.

    Args:
        path: of the directory.
        index: what is written.
        kind: one of `KINDS`, that of its finder.
        meta: what it was built with and from: `degree` where it has one, and what whoever opens it wants to know.
        replace: whether a directory there gives way.

    Raises:
        StorageError: `path` exists and `replace` is false, or the disk is full or forbidden.
    """
    told = {**meta, "kind": KIND, "version": VERSION, "index": kind, "effort": index.effort}
    told |= {"rows": len(index.documents), "width": index.embeddings.shape[1]}
    with committed_directory(path, told, replace=replace) as folder:
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(index, name), allow_pickle=False)
        (folder / FINDER).mkdir()
        index.finder.save(folder / FINDER)


def read_meta(path: Path) -> dict[str, Any]:
    """What an index was built with and from; only names and sizes of files are checked.

    Raises:
        StorageError: it was never finished, or is no index of this version.
    """
    meta: dict[str, Any] = read_manifest(path, verify=False)["meta"]
    if meta.get("kind") != KIND or meta.get("version") != VERSION or str(meta.get("index")) not in _READ:
        raise StorageError("holds no index", str(path), "name the --output of jobs/index.py")
    needed: type[_Meta] = _VamanaMeta if meta["index"] == "vamana" else _Meta
    conform(meta, str(path / MANIFEST), needed, _REMEDY)
    return meta


@activity("opening the index")
def read_index(path: Path) -> ApproximateIndex:
    """Open an index; every byte is compared with its digest once, and again when a file has changed.

    Raises:
        StorageError: it was never finished, is damaged, or is no index of this version.
        ConfigError: its library is not installed.
    """
    meta = read_meta(path)
    check_directory(path)
    rows, width = meta["rows"], meta["width"]
    with disk_errors(path, reading=True):
        embeddings = read_array(path / "embeddings.npy", ["float32"], (rows, width), _REMEDY, mapped="r")
        documents = read_array(path / "documents.npy", ["int64"], (rows,), _REMEDY)
        ties = read_array(path / "ties.npy", ["int64"], (None,), _REMEDY)
    for name, values in (("documents", documents), ("ties", ties)):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(ties):
            reason = f"holds positions outside of a corpus of {len(ties):,} documents"
            raise StorageError(reason, str(path / f"{name}.npy"), _REMEDY)
    finder = _READ[meta["index"]](path / FINDER, embeddings, meta)
    return ApproximateIndex(finder, embeddings, documents, ties, int(meta["effort"]))
