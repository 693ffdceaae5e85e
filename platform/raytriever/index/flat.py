"""Every document is a candidate: FAISS's flat search, what the approximate finders are held against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float32
from numpy import ndarray

from raytriever.index.approximate import Found
from raytriever.index.faiss_files import faiss


@dataclass(frozen=True)
class Flat:
    """A `Finder` that scores all embeddings; has nothing of its own to save."""

    embeddings: Float32[ndarray, "rows width"]

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Found:
        """See `Finder`; effort changes nothing."""
        faiss.omp_set_num_threads(threads)
        _, rows = faiss.knn(queries, self.embeddings, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Found(rows, float(len(self.embeddings)))

    def save(self, folder: Path) -> None:
        """Nothing."""

    @property
    def bytes(self) -> int:
        """None beside the embeddings."""
        return 0
