"""Finders by FAISS: flat search, inverted files and HNSW, with their files.

1. `Flat` scores every document; the approximate finders are compared with it.
2. `Ivf` (IVF-Flat) puts documents into lists around k-means centres and reads the lists nearest to a query. `IvfPq`
   keeps codes of a few bytes, a product quantiser's of the difference to the centre, and proposes more documents than
   are wanted, because their own embeddings decide afterwards.
3. `Hnsw` walks from sparse layers of a graph down to the one of all documents. The graph is built by the dot product
   between documents: made for normalised embeddings. Built by several threads, it depends on their timing; by one, on
   the embeddings and the seed alone.

FAISS trusts the files that it reads, so they are read only from a directory whose digests match its manifest
(`storage.read_manifest`).

Sources: Jégou, Douze and Schmid, Product Quantization for Nearest Neighbor Search, TPAMI 33(1), 2011; Malkov and
Yashunin, Efficient and Robust Approximate Nearest Neighbor Search Using Hierarchical Navigable Small World Graphs,
TPAMI 42(4), 2020."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from numpy import ndarray

from raytriever.errors import ConfigError, StorageError
from raytriever.index.approximate.index import Proposal
from raytriever.storage import disk_errors

FILE = "index.faiss"
# The stubs that come with it know a part of it.
faiss: Any = import_module("faiss")


def write_faiss(index: Any, folder: Path) -> None:
    """Write an index into a folder.

    Raises:
        StorageError: it cannot be written.
    """
    with disk_errors(folder):
        try:
            faiss.write_index(index, str(folder / FILE))
        except RuntimeError as error:
            raise StorageError("FAISS cannot write its index", str(folder), "is the disk full?") from error


def read_faiss(folder: Path, shape: tuple[int, ...]) -> Any:
    """Read an index whose digest was checked, over embeddings of this shape.

    Raises:
        StorageError: this FAISS cannot read it, or it is of other embeddings.
    """
    try:
        index = faiss.read_index(str(folder / FILE))
    except RuntimeError as error:
        raise StorageError("this FAISS cannot read the index", str(folder), "build it again") from error
    if (index.ntotal, index.d) != shape:
        reason = f"holds {index.ntotal:,} vectors of width {index.d}, expected {shape[0]:,} of width {shape[1]}"
        raise StorageError(reason, str(folder / FILE), "build the index again")
    return index


@dataclass(frozen=True)
class Flat:
    """A `Finder` that scores all embeddings; has nothing of its own to save."""

    embeddings: Float32[ndarray, "rows width"]

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Proposal:
        """See `Finder`; effort changes nothing."""
        faiss.omp_set_num_threads(threads)
        _, rows = faiss.knn(queries, self.embeddings, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Proposal(rows, float(len(self.embeddings)))

    def save(self, folder: Path) -> None:
        """Nothing."""

    @property
    def bytes(self) -> int:
        """None beside the embeddings."""
        return 0


# What k-means and a quantiser of 8 bits learn from, at least; FAISS warns below 39 a centre.
PER_LIST, CODES = 39, 256
REFINE = 4


@dataclass(frozen=True)
class Ivf:
    """A `Finder` whose effort is how many lists are read.

    Args:
        index: a trained `faiss.IndexIVF`.
        proposed: how many times k documents are proposed.
    """

    index: Any
    proposed: int = 1

    @classmethod
    def build(
        cls,
        embeddings: Float32[ndarray, "rows width"],
        lists: int | None,
        code_bytes: int | None,
        seed: int,
        threads: int,
    ) -> Ivf:
        """Train and fill an inverted file.

        Args:
            embeddings: finite.
            lists: how many; by default 4 times the square root of the number of rows, fewer where rows are few.
            code_bytes: of a code, a divisor of the width; None keeps embeddings whole.
            seed: of k-means and the quantiser.
            threads: see `Finder.find`.

        Raises:
            ConfigError: there are more lists than rows, too few rows for codes, or the width is not divisible.
        """
        rows, width = embeddings.shape
        lists = lists or max(1, min(int(4 * sqrt(rows)), rows // PER_LIST))
        if lists > rows:
            raise ConfigError(f"{lists:,} lists of {rows:,} documents", "--lists", f"give at most {rows:,}")
        faiss.omp_set_num_threads(threads)
        centres = faiss.IndexFlatIP(width)
        if code_bytes is None:
            index = faiss.IndexIVFFlat(centres, width, lists, faiss.METRIC_INNER_PRODUCT)
        else:
            _check_codes(rows, width, code_bytes)
            index = faiss.IndexIVFPQ(centres, width, lists, code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
            index.pq.cp.seed = seed
        index.cp.seed = seed
        index.cp.min_points_per_centroid = 1  # it is our rule that sets the number of lists, or the user's
        index.train(embeddings)
        index.add(embeddings)
        return cls(index, 1 if code_bytes is None else REFINE)

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Proposal:
        """See `Finder`."""
        faiss.omp_set_num_threads(threads)
        faiss.cvar.indexIVF_stats.reset()
        wanted = min(self.proposed * k, self.index.ntotal)
        settings = faiss.SearchParametersIVF(nprobe=min(effort, self.index.nlist))
        _, rows = self.index.search(queries, wanted, params=settings)
        # The centres are scored too.
        candidates = faiss.cvar.indexIVF_stats.ndis / max(1, len(queries)) + self.index.nlist
        return Proposal(rows, float(candidates))

    def save(self, folder: Path) -> None:
        """See `Finder`."""
        write_faiss(self.index, folder)

    @classmethod
    def load(cls, folder: Path, shape: tuple[int, ...]) -> Ivf:
        """Read what `save` wrote for embeddings of this shape; the folder's digests are compared before."""
        index = read_faiss(folder, shape)
        return cls(index, REFINE if isinstance(index, faiss.IndexIVFPQ) else 1)

    @property
    def bytes(self) -> int:
        """Its centres, and a number of 8 bytes and an embedding or a code for every row."""
        index = self.index
        return int(4 * index.nlist * index.d + index.ntotal * (8 + index.code_size))


def default_code_bytes(width: int) -> int:
    """The largest divisor of the width that is at most a quarter of it: 16 times smaller than float32."""
    return max(size for size in range(1, max(1, width // 4) + 1) if width % size == 0)


def _check_codes(rows: int, width: int, code_bytes: int) -> None:
    if width % code_bytes:
        allowed = ", ".join(str(size) for size in range(1, width + 1) if width % size == 0)
        raise ConfigError(f"{code_bytes} does not divide the width {width}", "--code-bytes", f"choose from {allowed}")
    if rows < CODES:
        raise ConfigError(f"codes are learnt from at least {CODES} documents, not {rows}", remedy="use --index ivf")


@dataclass(frozen=True)
class Hnsw:
    """A `Finder` whose effort is the number of documents a walk holds (`efSearch`).

    Args:
        index: a `faiss.IndexHNSWFlat`.
    """

    index: Any

    @classmethod
    def build(cls, embeddings: Float32[ndarray, "rows width"], degree: int, beam: int, seed: int, threads: int) -> Hnsw:
        """Insert the embeddings.

        Args:
            embeddings: finite.
            degree: neighbours of a document; twice as many in the lowest layer (`M`).
            beam: documents held by the search for an inserted one (`efConstruction`).
            seed: of the layers.
            threads: how many insert; above 1 the graph is not the same every time.
        """
        faiss.omp_set_num_threads(threads)
        index = faiss.IndexHNSWFlat(embeddings.shape[1], degree, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = beam
        index.hnsw.rng = faiss.RandomGenerator(seed)
        index.add(embeddings)
        return cls(index)

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Proposal:
        """See `Finder`."""
        faiss.omp_set_num_threads(threads)
        faiss.cvar.hnsw_stats.reset()
        _, rows = self.index.search(queries, k, params=faiss.SearchParametersHNSW(efSearch=max(effort, k)))
        return Proposal(rows, faiss.cvar.hnsw_stats.ndis / max(1, len(queries)))

    def save(self, folder: Path) -> None:
        """See `Finder`."""
        write_faiss(self.index, folder)

    @classmethod
    def load(cls, folder: Path, shape: tuple[int, ...]) -> Hnsw:
        """Read what `save` wrote for embeddings of this shape; the folder's digests are compared before."""
        return cls(read_faiss(folder, shape))

    @property
    def bytes(self) -> int:
        """Its links, levels and their places, and the embeddings once more."""
        links = self.index.hnsw
        graph = 4 * links.neighbors.size() + 8 * links.offsets.size() + 4 * links.levels.size()
        return int(graph + 4 * self.index.ntotal * self.index.d)
