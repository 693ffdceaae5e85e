"""Vamana, the graph of DiskANN, from Intel's Scalable Vector Search. It needs the extra `vamana` (Linux, x86-64).

The source of SVS is Apache-2.0; its package is a binary under Intel's own license, which allows use and unmodified
redistribution. SVS does not report how many candidates a walk scored. In tests, graphs built by different numbers of
threads gave the same results.

Source: Subramanya, Devvrit, Kadekodi, Krishnaswamy and Simhadri, DiskANN: Fast Accurate Billion-point Nearest Neighbor
Search on a Single Node, NeurIPS 2019."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, UInt64
from numpy import ndarray

from raytriever.core.errors import ConfigError, setting
from raytriever.retrieval.index.approximate.ann_index import Proposal, check_shape

# Pruning factor: how much better a detour must be for an edge to be removed. It must be below 1 for dot products.
ALPHA = 0.95
_FOLDERS = ("config", "graph", "data")


@dataclass(frozen=True)
class Vamana:
    """ANN index with a Vamana graph, an `svs.Vamana`. The search size is the beam width of a search
    (`search_window_size`)."""

    index: Any

    @classmethod
    def build(cls, embeddings: Float32[ndarray, "rows dim"], m: int, ef_construction: int, threads: int) -> Vamana:
        """Build the graph.

        Args:
            embeddings: finite embeddings.
            m: largest number of neighbors of a document.
            ef_construction: beam width of a search for a document (`window_size`).
        """
        svs = _svs()
        settings = svs.VamanaBuildParameters(graph_max_degree=m, window_size=max(ef_construction, m), alpha=ALPHA)
        return cls(svs.Vamana.build(settings, embeddings, svs.DistanceType.MIP, num_threads=threads))

    def find(self, queries: Float32[ndarray, "queries dim"], k: int, search_size: int, threads: int) -> Proposal:
        """Find rows; see `AnnIndex`."""
        if self.index.num_threads != threads:
            self.index.num_threads = threads
        self.index.search_window_size = max(search_size, k)
        rows, _ = self.index.search(queries, k)
        # If a walk reaches fewer than k documents, SVS repeats a document or returns a number beyond the last row.
        valid = (rows < self.index.size) & ~_repeated(rows)
        return Proposal(np.where(valid, rows, -1).astype(np.int64), float("nan"))

    def save(self, folder: Path) -> None:
        """Write the index; see `AnnIndex`."""
        self.index.save(*(str(folder / name) for name in _FOLDERS))

    @classmethod
    def load(cls, folder: Path, shape: tuple[int, ...]) -> Vamana:
        """Read the files of `save` for embeddings of this shape. The caller must have checked the digests of the
        folder."""
        svs = _svs()
        config, graph, data = (str(folder / name) for name in _FOLDERS)
        vectors = svs.VectorDataLoader(data, svs.DataType.float32)
        index = svs.Vamana(config, svs.GraphLoader(graph), vectors, svs.DistanceType.MIP, num_threads=1)
        check_shape((index.size, index.dimensions), shape, folder)
        return cls(index)


def _repeated(rows: UInt64[ndarray, "queries k"]) -> Bool[ndarray, "queries k"]:
    order = np.argsort(rows, axis=1, kind="stable")
    ascending = np.take_along_axis(rows, order, axis=1)
    repeated = np.zeros(rows.shape, bool)
    np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    return repeated


def _svs() -> Any:
    try:
        import svs
    except ImportError as error:
        what = "Vamana needs Intel's Scalable Vector Search"
        raise ConfigError(what, setting("index"), "pip install 'raytriever[vamana]'") from error
    return svs
