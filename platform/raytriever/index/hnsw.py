"""Hierarchical navigable small worlds by FAISS: a walk from sparse layers of a graph down to the one of all documents.

The graph is built by the dot product between documents, as FAISS does for that metric: made for normalised embeddings.
Built by several threads, it depends on who came first; by one, on the embeddings and the seed alone.

Source: Malkov and Yashunin, Efficient and Robust Approximate Nearest Neighbor Search Using Hierarchical Navigable Small
World Graphs, TPAMI 42(4), 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float32
from numpy import ndarray

from raytriever.index.approximate import Found
from raytriever.index.faiss_files import faiss, read_faiss, write_faiss


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

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Found:
        """See `Finder`."""
        faiss.omp_set_num_threads(threads)
        faiss.cvar.hnsw_stats.reset()
        _, rows = self.index.search(queries, k, params=faiss.SearchParametersHNSW(efSearch=max(effort, k)))
        return Found(rows, faiss.cvar.hnsw_stats.ndis / max(1, len(queries)))

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
