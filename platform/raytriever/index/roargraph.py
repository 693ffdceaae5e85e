"""RoarGraph: a graph over the documents built from training queries, so that it is dense where queries look.

Graphs of documents alone join what is close for documents. Queries of another distribution find their nearest
documents far from each other, and walk long. RoarGraph joins documents that the same training query is close to:

1. `roargraph_projection`: queries and their nearest documents as a bipartite graph, projected onto the documents;
2. `roargraph_connection`: edges between close documents, until a path leads from the entry to every one.

Source: Chen, Zhang, He, Jing and Wang, RoarGraph: A Projected Bipartite Graph for Efficient Cross-Modal Approximate
Nearest Neighbor Search, PVLDB 17(11), 2024; written from the paper. The graph is the same at any number of threads;
processors that sum in vectors of another length may choose other neighbours where distances all but tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from jaxtyping import Float32, Int32
from numpy import ndarray

from raytriever.errors import DataError
from raytriever.index.approximate import Found
from raytriever.index.exact import top_k
from raytriever.index.graph import Graph
from raytriever.index.graph_walk import walk_all
from raytriever.index.roargraph_connection import connect
from raytriever.index.roargraph_projection import project

# A document has 31 bits in a place of the beam.
MOST_DOCUMENTS = 2**31 - 1
PIECE = 65_536


@dataclass(frozen=True)
class RoarGraph:
    """A `Finder` whose effort is the number of documents a walk holds."""

    graph: Graph
    embeddings: Float32[ndarray, "rows width"]

    @classmethod
    def build(
        cls,
        embeddings: Float32[ndarray, "rows width"],
        training: Float32[ndarray, "training width"],
        degree: int,
        nearest: int,
        beam: int,
        seed: int,
        threads: int,
    ) -> RoarGraph:
        """Build the graph.

        Args:
            embeddings: finite, at least one.
            training: queries like those that will be asked; about as many as documents are best, a tenth does.
            degree: neighbours of a document by either step, so that it has twice as many at most.
            nearest: documents of a training query.
            beam: documents held by the search for one, in the second step.
            seed: of the order in which documents are connected.
            threads: how many build; the graph is the same.

        Raises:
            DataError: there are no training queries.
            ModelError: an embedding is not finite.
        """
        if not len(training) or not len(embeddings):
            raise DataError("RoarGraph is built from documents and training queries, and there are none of one kind")
        if len(embeddings) > MOST_DOCUMENTS:
            raise DataError(f"{len(embeddings):,} documents", remedy=f"RoarGraph holds {MOST_DOCUMENTS:,} at most")
        close = _closest(training, embeddings, nearest)
        numba.set_num_threads(max(1, min(threads, numba.config.NUMBA_NUM_THREADS)))
        neighbours, degrees = project(close, embeddings, degree)
        return cls(connect(neighbours, degrees, embeddings, beam, seed), embeddings)

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Found:
        """See `Finder`."""
        rows, candidates = walk_all(self.graph, queries, self.embeddings, k, effort, threads)
        return Found(rows, float(candidates.mean()) if len(queries) else 0.0)

    def save(self, folder: Path) -> None:
        """See `Finder`."""
        self.graph.save(folder)

    @classmethod
    def load(cls, folder: Path, embeddings: Float32[ndarray, "rows width"]) -> RoarGraph:
        """Read what `save` wrote over the same embeddings.

        Raises:
            StorageError: the files are none of a graph of that size.
        """
        return cls(Graph.load(folder, len(embeddings)), embeddings)

    @property
    def bytes(self) -> int:
        """The graph."""
        return self.graph.neighbours.nbytes + self.graph.degrees.nbytes


def _closest(
    training: Float32[ndarray, "training width"], embeddings: Float32[ndarray, "rows width"], nearest: int
) -> Int32[ndarray, "training nearest"]:
    """The documents of each training query, the closest first; made in pieces, since scores and positions of 8 bytes
    would be three times as much memory."""
    close = np.empty((len(training), min(nearest, len(embeddings))), np.int32)
    ties = np.arange(len(embeddings))
    for start in range(0, len(training), PIECE):
        close[start : start + PIECE] = top_k(training[start : start + PIECE], embeddings, nearest, ties)[1]
    return close
