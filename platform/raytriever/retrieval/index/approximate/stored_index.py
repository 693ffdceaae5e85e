"""Approximate indexes as committed directories.

    DIR/manifest.json      the digest of every file, and the inputs and settings of the index
    DIR/embeddings.npy     the embeddings, memory-mapped when read
    DIR/ties.npy           the rank of each document among documents with equal scores
    DIR/ann_index/         the files of the ANN index

Every file is compared with its digest before it is opened, because FAISS and SVS trust their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import StorageError
from raytriever.core.progress import activity
from raytriever.core.reading.arrays import read_array
from raytriever.core.reading.json_and_yaml import conform
from raytriever.core.store.commit import MANIFEST, read_manifest
from raytriever.data.file_digests import check_directory
from raytriever.retrieval.index.approximate.ann_index import AnnIndex, ApproximateIndex
from raytriever.retrieval.index.approximate.faiss_indexes import Flat, Hnsw, Ivf
from raytriever.retrieval.index.approximate.roargraph import RoarGraph
from raytriever.retrieval.index.approximate.vamana import Vamana

KIND = "index"
ANN_INDEX = "ann_index"
_REMEDY = "build the index again"
EMBEDDINGS, TIES = "embeddings.npy", "ties.npy"

# Reader of each kind of ANN index. Its arguments are the folder and the embeddings.
_READERS: dict[str, Callable[[Path, ndarray], AnnIndex]] = {
    "flat": lambda folder, embeddings: Flat(embeddings),
    "ivf": lambda folder, embeddings: Ivf.load(folder, embeddings.shape),
    "ivfpq": lambda folder, embeddings: Ivf.load(folder, embeddings.shape),
    "hnsw": lambda folder, embeddings: Hnsw.load(folder, embeddings.shape),
    "vamana": lambda folder, embeddings: Vamana.load(folder, embeddings.shape),
    "roargraph": lambda folder, embeddings: RoarGraph.load(folder, embeddings),
}


class _Meta(TypedDict):
    rows: int
    dim: int
    search_size: int


def write_embeddings(folder: Path, blocks: Iterable[ndarray], shape: tuple[int, int]) -> Float32[ndarray, "rows dim"]:
    """Write the embeddings of an index into its folder and memory-map them. `shape` is the total shape of the blocks.

    The index is then built from the file, so that the kernel can drop its pages when memory is short."""
    file = folder / EMBEDDINGS
    with file.open("xb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block, "<f4").data)
    # Copy-on-write, because code that is compiled for arrays in memory rejects read-only arrays.
    return np.asarray(read_array(file, ["float32"], shape, _REMEDY, mapped="c"))


def save_index(folder: Path, index: ApproximateIndex, kind: str) -> dict[str, Any]:
    """Write an index except its embeddings, and return its entries for the manifest. `kind` is one of `INDEXES`."""
    np.save(folder / TIES, index.ties, allow_pickle=False)
    (folder / ANN_INDEX).mkdir()
    index.ann_index.save(folder / ANN_INDEX)
    rows, dim = index.embeddings.shape
    return {"kind": KIND, "index": kind, "search_size": index.search_size, "rows": rows, "dim": dim}


def read_meta(path: Path) -> dict[str, Any]:
    """Read the inputs and settings of an index. Only the names and sizes of the files are checked."""
    meta: dict[str, Any] = read_manifest(path, verify=False)["meta"]
    if meta.get("kind") != KIND or str(meta.get("index")) not in _READERS:
        raise StorageError("is not an index", str(path), "give a directory that `raytriever index` wrote")
    conform(meta, str(path / MANIFEST), _Meta, _REMEDY)
    return meta


@activity("opening the index")
def read_index(path: Path) -> ApproximateIndex:
    """Open an index. A file is compared with its digest if it is new, or has changed since the last check."""
    meta = read_meta(path)
    check_directory(path)
    rows, dim = meta["rows"], meta["dim"]
    embeddings = read_array(path / EMBEDDINGS, ["float32"], (rows, dim), _REMEDY, mapped="r")
    ties = read_array(path / TIES, ["int64"], (rows,), _REMEDY)
    if rows and not 0 <= int(ties.min()) <= int(ties.max()) < rows:
        reason = f"holds a rank that is not from 0 to {rows - 1:,}"
        raise StorageError(reason, str(path / TIES), _REMEDY)
    ann_index = _READERS[meta["index"]](path / ANN_INDEX, embeddings)
    return ApproximateIndex(ann_index, embeddings, ties, int(meta["search_size"]))
