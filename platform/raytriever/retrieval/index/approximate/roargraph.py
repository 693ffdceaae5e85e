"""RoarGraph: a graph over the documents that is built from training queries, so it is dense where queries search.

Graphs built from documents alone connect documents that are close to each other. But if queries have another
distribution than documents, the documents nearest to a query are far from each other, and a walk takes many steps. So
RoarGraph connects documents that are close to the same training query:

1. Bipartite graph: every training query has edges to its `nearest` closest documents. The closest one, the pivot, has
   an edge back to the query.
2. Projection: two steps in this graph lead from a pivot to the documents that are close to the pivot's queries. These
   are its candidates. `choose_neighbors` chooses among them by their distances to the pivot, and fills free slots.
   Every edge then gets a reverse edge.
3. Connectivity enhancement: a walk searches for every document in the graph built so far. `choose_neighbors` chooses
   further neighbors among the documents of the beam, and these edges get reverse edges. Documents are processed in a
   random order and in batches; a batch searches the graph that the batches before it have built. A document that the
   entry still does not reach gets an edge from the nearest reachable document with a free slot.

Distances between documents are Euclidean, which gives the order of dot products for normalized embeddings.

Source: Chen, Zhang, He, Jing and Wang, RoarGraph: A Projected Bipartite Graph for Efficient Cross-Modal Approximate
Nearest Neighbor Search, PVLDB 17(11), 2024. Implemented from the paper; the batches and the last edges are additions.
The graph is the same for any number of threads. Processors with SIMD registers of another width may choose other
neighbors if distances are almost equal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
from jaxtyping import Float32, Int32
from numpy import ndarray

from raytriever.core.errors import DataError
from raytriever.core.numba_threads import in_threads
from raytriever.retrieval.index.approximate import neighbor_graph as graphs
from raytriever.retrieval.index.approximate.ann_index import Proposal
from raytriever.retrieval.index.exact_top_k import Corpus
from raytriever.retrieval.index.rank_keys import TieOrder

# An entry of the beam has 31 bits for the document.
MOST_DOCUMENTS = 2**31 - 1
# Number of training queries whose closest documents are found together.
PIECE = 65_536
# Documents are connected in batches of at least `SMALLEST_BATCH`, and of at most the corpus divided by `BATCHES`.
SMALLEST_BATCH, BATCHES = 256, 64


def project(
    nearest: Int32[ndarray, "queries nearest"],
    documents: Float32[ndarray, "documents dim"],
    degree: int,
    threads: int = 1,
) -> tuple[Int32[ndarray, "documents degree"], Int32[ndarray, " documents"]]:
    """Return the projected graph as neighbors and degrees (see `Graph`). The closest come first in `nearest`."""
    neighbors = np.full((len(documents), degree), -1, np.int32)
    degrees = np.zeros(len(documents), np.int32)
    if nearest.shape[0] and nearest.shape[1]:
        order = np.argsort(nearest[:, 0], kind="stable")
        pivots, starts = np.unique(nearest[order, 0], return_index=True)
        bounds = np.append(starts, len(order))
        documents = graphs.read_only(documents)
        arrays = (nearest[order], pivots, bounds, documents, neighbors, degrees)
        in_threads(_project, len(pivots), *arrays, threads=threads)
        graphs.add_reverse_edges(neighbors, degrees, np.zeros_like(degrees), pivots, True, documents, threads)
    return neighbors, degrees


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _project(first, last, nearest, pivots, bounds, documents, neighbors, degrees):  # type: ignore[no-untyped-def]
    for number in range(first, last):
        pivot = np.int64(pivots[number])
        candidates = nearest[bounds[number] : bounds[number + 1]].copy().reshape(-1)
        chosen = np.empty(neighbors.shape[1], np.int32)
        count = graphs.choose_neighbors(pivot, candidates, documents, True, chosen)
        neighbors[pivot, :count] = chosen[:count]
        degrees[pivot] = count


def connect(
    neighbors: Int32[ndarray, "documents degree"],
    degrees: Int32[ndarray, " documents"],
    documents: Float32[ndarray, "documents dim"],
    beam: int,
    seed: int,
    threads: int = 1,
) -> graphs.Graph:
    """Return the graph of `project` with up to twice as many neighbors. Every document is then reachable.

    `beam` is the beam width of a search for a document. `seed` decides the order of the documents."""
    documents = graphs.read_only(documents)
    count, degree = neighbors.shape
    neighbors_of_both = np.full((count, 2 * degree), -1, np.int32)
    neighbors_of_both[:, :degree] = neighbors
    graph = graphs.Graph(neighbors_of_both, degrees.copy(), _entry(documents, degrees))
    halves = (np.square(documents, dtype=np.float32).sum(1) / 2).astype(np.float32)
    order, start = np.random.default_rng(seed).permutation(count), 0
    while start < count:
        batch = order[start : start + max(SMALLEST_BATCH, min(start, count // BATCHES))]
        start += len(batch)
        new = np.full((len(batch), degree), -1, np.int32)
        arrays = (batch, documents, halves, neighbors_of_both, graph.degrees, graph.entry, beam, new)
        in_threads(_search, len(batch), *arrays, threads=threads)
        for row, added in zip(batch, new, strict=True):
            count_before, count_added = graph.degrees[row], int((added >= 0).sum())
            neighbors_of_both[row, count_before : count_before + count_added] = added[:count_added]
            graph.degrees[row] += count_added
        graphs.add_reverse_edges(neighbors_of_both, graph.degrees, degrees, batch, False, documents, threads)
    return _connect_unreachable(graph, documents)


def _entry(documents: Float32[ndarray, "documents dim"], degrees: Int32[ndarray, " documents"]) -> int:
    """Return the document nearest to the mean of all documents. If any document has edges, skip those without edges."""
    distances = np.square(documents - documents.mean(0, dtype=np.float64)).sum(1)
    return int(np.argmin(np.where((degrees > 0) | (degrees.max() == 0), distances, np.inf)))


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _search(first, last, batch, documents, halves, neighbors, degrees, entry, beam, new):  # type: ignore[no-untyped-def]
    seen = np.empty((len(documents) + 63) // 64, np.uint64)
    pool, rows = np.empty(beam, np.uint64), np.empty(beam, np.int32)
    for index in range(first, last):
        row = batch[index]
        size, _ = graphs.walk(documents[row], documents, halves, neighbors, degrees, entry, seen, pool)
        for i in range(size):
            rows[i] = graphs.row_of(pool[i])
        chosen = np.empty(new.shape[1], np.int32)
        count = graphs.choose_neighbors(row, rows[:size], documents, False, chosen)
        fresh = graphs.exclude(chosen[:count], neighbors[row, : degrees[row]])
        free = min(len(fresh), neighbors.shape[1] - degrees[row])
        new[index, :free] = fresh[:free]


def _connect_unreachable(graph: graphs.Graph, documents: Float32[ndarray, "documents dim"]) -> graphs.Graph:
    reached = np.zeros(len(documents), np.bool_)
    graphs.mark_reachable(graph.neighbors, graph.degrees, graph.entry, reached)
    for unreachable in np.flatnonzero(~reached):
        if reached[unreachable]:
            continue
        if not _add_edge_to(unreachable, graph.neighbors, graph.degrees, documents, reached):
            graph = replace(graph, neighbors=np.pad(graph.neighbors, ((0, 0), (0, 1)), constant_values=-1))
            _add_edge_to(unreachable, graph.neighbors, graph.degrees, documents, reached)
        graphs.mark_reachable(graph.neighbors, graph.degrees, int(unreachable), reached)
    return graph


@numba.njit(cache=True, error_model="numpy")
def _add_edge_to(document, neighbors, degrees, documents, reached):  # type: ignore[no-untyped-def]
    nearest, least = -1, np.float32(np.inf)
    for row in range(len(documents)):
        if reached[row] and degrees[row] < neighbors.shape[1]:
            distance = graphs.squared_distance(documents[document], documents[row])
            if distance < least:
                nearest, least = row, distance
    if nearest >= 0:
        neighbors[nearest, degrees[nearest]] = document
        degrees[nearest] += 1
    return nearest >= 0


@dataclass(frozen=True)
class RoarGraph:
    """ANN index with a RoarGraph. The search size is the beam width of a search."""

    graph: graphs.Graph
    embeddings: Float32[ndarray, "rows dim"]

    @classmethod
    def build(
        cls,
        embeddings: Float32[ndarray, "rows dim"],
        training: Float32[ndarray, "training dim"],
        degree: int,
        nearest: int,
        beam: int,
        seed: int,
        threads: int,
    ) -> RoarGraph:
        """Build the graph. `build_index` has already checked the arguments.

        Args:
            training: queries like those of later searches. Give as many as there are documents; a tenth is enough.
            degree: largest number of neighbors that `project`, and then `connect`, adds to a document.
            nearest: number of closest documents to which each training query has edges.
            beam, seed: see `connect`.
        """
        if len(embeddings) > MOST_DOCUMENTS:
            reason = f"there are {len(embeddings):,} documents"
            raise DataError(reason, remedy=f"use another index; RoarGraph holds at most {MOST_DOCUMENTS:,} documents")
        close = _closest(training, embeddings, nearest)
        neighbors, degrees = project(close, embeddings, degree, threads)
        return cls(connect(neighbors, degrees, embeddings, beam, seed, threads), embeddings)

    def find(self, queries: Float32[ndarray, "queries dim"], k: int, search_size: int, threads: int) -> Proposal:
        """Find rows; see `AnnIndex`."""
        rows, candidates = graphs.walk_all(self.graph, queries, self.embeddings, k, search_size, threads)
        return Proposal(rows, float(candidates.mean()) if len(queries) else 0.0)

    def save(self, folder: Path) -> None:
        """Write the graph; see `AnnIndex`."""
        self.graph.save(folder)

    @classmethod
    def load(cls, folder: Path, embeddings: Float32[ndarray, "rows dim"]) -> RoarGraph:
        """Read the files of `save` for the same embeddings."""
        return cls(graphs.Graph.load(folder, len(embeddings)), embeddings)


def _closest(
    training: Float32[ndarray, "training dim"], embeddings: Float32[ndarray, "rows dim"], nearest: int
) -> Int32[ndarray, "training nearest"]:
    """Return the closest documents of each training query.

    They are computed block by block, because scores and 8-byte positions take three times the memory of the result."""
    close = np.empty((len(training), min(nearest, len(embeddings))), np.int32)
    corpus = Corpus(lambda: [(0, embeddings)], TieOrder.of(np.arange(len(embeddings))))
    for start in range(0, len(training), PIECE):
        close[start : start + PIECE] = corpus.top_k(training[start : start + PIECE], nearest)[1]
    return close
