"""ANN indexes that use FAISS: flat search, inverted files and HNSW, with their files.

1. `Flat` scores every document. The approximate indexes are compared with it.
2. `Ivf` (IVF-Flat) groups documents into lists around k-means centers, and reads the lists nearest to a query. With
   codes (IVF-PQ) it stores only a few bytes per document, the product-quantized difference from the center. It then
   proposes more documents than requested, because rescoring with the full embeddings changes their order.
3. `Hnsw` walks from sparse layers of a graph down to the layer of all documents. It copies the embeddings in float16,
   which are faster to read than float32 and cost almost no recall. The graph is built by dot products between
   documents, so it suits normalized embeddings. If one thread builds the graph, it depends only on the
   embeddings and the seed. If several threads build it, it depends on their timing too.

FAISS trusts the files that it reads. So they are read only from a directory whose digests match its manifest
(`store.commit.read_manifest`).

Sources: Jégou, Douze and Schmid, Product Quantization for Nearest Neighbor Search, TPAMI 33(1), 2011; Malkov and
Yashunin, Efficient and Robust Approximate Nearest Neighbor Search Using Hierarchical Navigable Small World Graphs,
TPAMI 42(4), 2020."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.retrieval.index.approximate.ann_index import Proposal, check_shape

FILE = "index.faiss"
# Smallest numbers of training vectors: per list for k-means (FAISS warns below 39), and in total for 8-bit codes.
PER_LIST, CODES = 39, 256
# Largest number of training vectors per list; FAISS samples and copies them.
POINTS = 256
REFINE = 4
# The type is Any because the stubs of FAISS are incomplete.
faiss: Any = import_module("faiss")


def read_faiss(folder: Path, shape: tuple[int, ...]) -> Any:
    """Read a FAISS index over embeddings of this shape. The caller must have checked its digest."""
    try:
        index = faiss.read_index(str(folder / FILE))
    except RuntimeError as error:
        raise StorageError("this version of FAISS cannot read the index", str(folder), "build it again") from error
    check_shape((index.ntotal, index.d), shape, folder / FILE)
    return index


@dataclass(frozen=True)
class FaissAnnIndex:
    """ANN index that wraps a FAISS index. The FAISS index is created empty; `add` appends rows."""

    index: Any

    def add(self, embeddings: Float32[ndarray, "rows dim"], threads: int) -> Self:
        """Append rows. The centers and the quantizer of `Ivf` do not change. With several threads, the graph of `Hnsw`
        differs from run to run."""
        faiss.omp_set_num_threads(threads)
        self.index.add(embeddings)
        return self

    def save(self, folder: Path) -> None:
        """Write the index; see `AnnIndex`."""
        try:
            faiss.write_index(self.index, str(folder / FILE))
        except RuntimeError as error:
            raise StorageError("FAISS cannot write its index", str(folder), "free some disk space") from error


@dataclass(frozen=True)
class Flat:
    """ANN index that scores all embeddings. It has no files."""

    embeddings: Float32[ndarray, "rows dim"]

    def find(self, queries: Float32[ndarray, "queries dim"], k: int, search_size: int, threads: int) -> Proposal:
        """Find rows; see `AnnIndex`. `search_size` has no effect."""
        faiss.omp_set_num_threads(threads)
        _, rows = faiss.knn(queries, self.embeddings, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Proposal(rows, float(len(self.embeddings)))

    def save(self, folder: Path) -> None:
        """Do nothing: there are no files."""


@dataclass(frozen=True)
class Ivf(FaissAnnIndex):
    """ANN index with an inverted file, a trained `faiss.IndexIVF`. The search size is the number of lists that it
    reads. It proposes `proposed` times k documents."""

    proposed: int = 1

    @classmethod
    def trained(
        cls,
        embeddings: Float32[ndarray, "rows dim"],
        lists: int | None,
        code_bytes: int | None,
        seed: int,
        threads: int,
    ) -> Ivf:
        """Return a trained inverted file without rows; `add` appends them.

        Args:
            embeddings: finite embeddings.
            lists: number of lists; by default `default_lists`.
            code_bytes: bytes per code, a divisor of the dimension; None stores full embeddings.
        """
        rows, dim = embeddings.shape
        lists = lists or default_lists(rows)
        if lists > rows:
            raise ConfigError(f"{lists:,} lists exceed {rows:,} documents", setting("lists"), f"give at most {rows:,}")
        faiss.omp_set_num_threads(threads)
        centers = faiss.IndexFlatIP(dim)
        if code_bytes is None:
            index = faiss.IndexIVFFlat(centers, dim, lists, faiss.METRIC_INNER_PRODUCT)
        else:
            _check_codes(rows, dim, code_bytes)
            index = faiss.IndexIVFPQ(centers, dim, lists, code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
            index.pq.cp.seed = seed
        index.cp.seed = seed
        index.cp.min_points_per_centroid = 1  # the user or `default_lists` chose the number of lists: do not warn
        index.train(embeddings)
        return cls(index, 1 if code_bytes is None else REFINE)

    def find(self, queries: Float32[ndarray, "queries dim"], k: int, search_size: int, threads: int) -> Proposal:
        """Find rows; see `AnnIndex`."""
        faiss.omp_set_num_threads(threads)
        faiss.cvar.indexIVF_stats.reset()
        wanted = min(self.proposed * k, self.index.ntotal)
        settings = faiss.SearchParametersIVF(nprobe=min(search_size, self.index.nlist))
        _, rows = self.index.search(queries, wanted, params=settings)
        # FAISS does not count the centers, although it scores them too.
        candidates = faiss.cvar.indexIVF_stats.ndis / max(1, len(queries)) + self.index.nlist
        return Proposal(rows, float(candidates))

    @classmethod
    def load(cls, folder: Path, shape: tuple[int, ...]) -> Ivf:
        """Read the files of `save` for embeddings of this shape; the caller has checked the digests of the folder."""
        index = read_faiss(folder, shape)
        return cls(index, REFINE if isinstance(index, faiss.IndexIVFPQ) else 1)


def default_lists(rows: int) -> int:
    """Return a number of lists: 4 sqrt(rows), or fewer, so that there are `PER_LIST` training vectors per list."""
    return max(1, min(int(4 * sqrt(rows)), rows // PER_LIST))


def default_code_bytes(dim: int) -> int:
    """Return the largest divisor of `dim` up to `dim` / 4. So a code is at least 16 times smaller than its vector."""
    return max(size for size in range(1, max(1, dim // 4) + 1) if dim % size == 0)


def _check_codes(rows: int, dim: int, code_bytes: int) -> None:
    if dim % code_bytes:
        allowed = ", ".join(str(size) for size in range(1, dim + 1) if dim % size == 0)
        what = f"{code_bytes} does not divide the dimension {dim}"
        raise ConfigError(what, setting("code_bytes"), f"choose from {allowed}")
    if rows < CODES:
        what = f"ivfpq learns its codes from at least {CODES} documents, but there are only {rows}"
        raise ConfigError(what, remedy=f"use {setting('index')} ivf")


@dataclass(frozen=True)
class Hnsw(FaissAnnIndex):
    """ANN index with an HNSW graph, a `faiss.IndexHNSWSQ` of float16. The search size is the beam width of a search
    (`efSearch`)."""

    @classmethod
    def empty(cls, dim: int, m: int, ef_construction: int, seed: int, rows: int = 0) -> Hnsw:
        """Create a graph without rows.

        Args:
            m: number of neighbors of a document; twice as many in the lowest layer (`M`).
            ef_construction: beam width while a document is inserted (`efConstruction`).
            rows: number of rows for which to reserve memory. A growing array would be copied and need twice the memory.
        """
        index = faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_fp16, m, faiss.METRIC_INNER_PRODUCT)
        links, storage = index.hnsw, faiss.downcast_index(index.storage)
        links.efConstruction, links.rng = ef_construction, faiss.RandomGenerator(seed)
        # On average one of `m` rows is in the second layer, one of `m`^2 in the third. So reserve memory for some more.
        upper = m * int(1.1 * rows / (m - 1) + 100)
        neighbors = rows * links.nb_neighbors(0) + upper
        for array, size in (
            (storage.codes, rows * storage.code_size),
            (links.neighbors, neighbors),
            (links.levels, rows),
            (links.offsets, rows + 1),
        ):
            before = array.size()
            array.resize(max(size, before))
            array.resize(before)
        return cls(index)

    def find(self, queries: Float32[ndarray, "queries dim"], k: int, search_size: int, threads: int) -> Proposal:
        """Find rows; see `AnnIndex`."""
        faiss.omp_set_num_threads(threads)
        faiss.cvar.hnsw_stats.reset()
        settings = faiss.SearchParametersHNSW(efSearch=max(search_size, k))
        _, rows = self.index.search(queries, k, params=settings)
        return Proposal(rows, faiss.cvar.hnsw_stats.ndis / max(1, len(queries)))

    def add(self, embeddings: Float32[ndarray, "rows dim"], threads: int) -> Self:
        """See `FaissAnnIndex.add`."""
        largest = np.finfo(np.float16).max  # larger values would become infinite and break the graph
        return super().add(np.clip(embeddings, -largest, largest), threads)

    @classmethod
    def load(cls, folder: Path, shape: tuple[int, ...]) -> Hnsw:
        """Read the files of `save`. The caller must have checked the digests of the folder."""
        return cls(read_faiss(folder, shape))
