"""RoarGraph: a graph over the documents built from training queries, so that it is dense where queries search.

Graphs of documents alone join what is close for documents. Queries of another distribution find their nearest
documents far from each other, and walk long. RoarGraph joins documents that the same training query is close to:

1. Bipartite graph: every training query leads to its `nearest` closest documents, and its closest one, the pivot, leads
   back to it.
2. Projection: two steps in that graph lead from a pivot to the documents close to the queries it is closest to. These
   are its candidates. `choose_neighbours` chooses among them by their distances to the pivot and fills free slots.
   Edges get a reverse edge.
3. Connectivity enhancement: every document is searched for in the graph built so far; of the documents in the beam,
   `choose_neighbours` chooses further neighbours, which get reverse edges. Documents come in an order drawn from the
   seed, in batches: a batch searches the graph that the batches before have left. A document that still has no path
   from the entry gets an edge from the nearest document that has one and has room.

Distances between documents are Euclidean; for normalised embeddings that is the order of their dot products.

Source: Chen, Zhang, He, Jing and Wang, RoarGraph: A Projected Bipartite Graph for Efficient Cross-Modal Approximate
Nearest Neighbor Search, PVLDB 17(11), 2024; written from the paper, the batches and the last edges are ours. The graph
is the same at any number of threads; processors that sum in vectors of another length may choose other neighbours
where distances all but tie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
from jaxtyping import Float32, Int32
from numba import prange
from numpy import ndarray

from raytriever.errors import DataError
from raytriever.index.approximate.graph import Graph, mark_reachable, row_of, walk, walk_all
from raytriever.index.approximate.index import Proposal
from raytriever.index.approximate.pruning import add_reverse_edges, choose_neighbours, exclude, squared_distance
from raytriever.index.exact.search import top_k
from raytriever.index.score import read_only


def project(
    nearest: Int32[ndarray, "queries nearest"], documents: Float32[ndarray, "documents width"], degree: int
) -> tuple[Int32[ndarray, "documents degree"], Int32[ndarray, " documents"]]:
    """The projected graph as neighbours and degrees (see `graph.Graph`).

    Args:
        nearest: the closest documents of each training query, the closest first.
        documents: embeddings.
        degree: the most neighbours of a document.
    """
    neighbours = np.full((len(documents), degree), -1, np.int32)
    degrees = np.zeros(len(documents), np.int32)
    if nearest.shape[0] and nearest.shape[1]:
        order = np.argsort(nearest[:, 0], kind="stable")
        pivots, starts = np.unique(nearest[order, 0], return_index=True)
        bounds = np.append(starts, len(order))
        _project(nearest[order], pivots, bounds, read_only(documents), neighbours, degrees)
        add_reverse_edges(neighbours, degrees, np.zeros_like(degrees), pivots, True, read_only(documents))
    return neighbours, degrees


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _project(nearest, pivots, bounds, documents, neighbours, degrees):  # type: ignore[no-untyped-def]
    for number in prange(len(pivots)):
        pivot = np.int64(pivots[number])
        candidates = nearest[bounds[number] : bounds[number + 1]].copy().reshape(-1)
        chosen = np.empty(neighbours.shape[1], np.int32)
        count = choose_neighbours(pivot, candidates, documents, True, chosen)
        neighbours[pivot, :count] = chosen[:count]
        degrees[pivot] = count


SMALLEST_BATCH, BATCHES = 256, 64


def connect(
    neighbours: Int32[ndarray, "documents degree"],
    degrees: Int32[ndarray, " documents"],
    documents: Float32[ndarray, "documents width"],
    beam: int,
    seed: int,
) -> Graph:
    """The projected graph with as many neighbours again.

    Args:
        neighbours, degrees: from `project`.
        documents: embeddings, at least one.
        beam: how many documents a search for another holds.
        seed: decides the order in which documents take their turns.
    """
    documents = read_only(documents)
    count, degree = neighbours.shape
    wide = np.full((count, 2 * degree), -1, np.int32)
    wide[:, :degree] = neighbours
    graph = Graph(wide, degrees.copy(), _entry(documents, degrees))
    halves = (np.square(documents, dtype=np.float32).sum(1) / 2).astype(np.float32)
    order, start = np.random.default_rng(seed).permutation(count), 0
    while start < count:
        batch = order[start : start + max(SMALLEST_BATCH, min(start, count // BATCHES))]
        start += len(batch)
        new = np.full((len(batch), degree), -1, np.int32)
        _search(batch, documents, halves, wide, graph.degrees, graph.entry, beam, numba.get_num_threads(), new)
        for row, found in zip(batch, new, strict=True):
            held, more = graph.degrees[row], int((found >= 0).sum())
            wide[row, held : held + more] = found[:more]
            graph.degrees[row] += more
        add_reverse_edges(wide, graph.degrees, degrees, batch, False, documents)
    return _lead_to_all(graph, documents)


def _entry(documents: Float32[ndarray, "documents width"], degrees: Int32[ndarray, " documents"]) -> int:
    """The document nearest to the mean of all, of those that have edges where any has."""
    distances = np.square(documents - documents.mean(0, dtype=np.float64)).sum(1)
    return int(np.argmin(np.where((degrees > 0) | (degrees.max() == 0), distances, np.inf)))


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _search(  # type: ignore[no-untyped-def]
    batch, documents, halves, neighbours, degrees, entry, beam, threads, new
):
    for thread in prange(threads):
        seen = np.empty((len(documents) + 63) // 64, np.uint64)
        pool, rows = np.empty(beam, np.uint64), np.empty(beam, np.int32)
        for place in range(thread, len(batch), threads):
            row = batch[place]
            size, _ = walk(documents[row], documents, halves, neighbours, degrees, entry, seen, pool)
            for at in range(size):
                rows[at] = row_of(pool[at])
            chosen = np.empty(new.shape[1], np.int32)
            count = choose_neighbours(row, rows[:size], documents, False, chosen)
            fresh = exclude(chosen[:count], neighbours[row, : degrees[row]])
            room = min(len(fresh), neighbours.shape[1] - degrees[row])
            new[place, :room] = fresh[:room]


def _lead_to_all(graph: Graph, documents: Float32[ndarray, "documents width"]) -> Graph:
    """Give every document that no path leads to an edge from the nearest one that has a path and room."""
    reached = np.zeros(len(documents), np.bool_)
    mark_reachable(graph, graph.entry, reached)
    for lost in np.flatnonzero(~reached):
        if reached[lost]:
            continue
        if not _lead_to(lost, graph.neighbours, graph.degrees, documents, reached):
            graph = replace(graph, neighbours=np.pad(graph.neighbours, ((0, 0), (0, 1)), constant_values=-1))
            _lead_to(lost, graph.neighbours, graph.degrees, documents, reached)
        mark_reachable(graph, int(lost), reached)
    return graph


@numba.njit(cache=True, error_model="numpy")
def _lead_to(lost, neighbours, degrees, documents, reached):  # type: ignore[no-untyped-def]
    """Whether there was room."""
    nearest, least = -1, np.float32(np.inf)
    for row in range(len(documents)):
        if reached[row] and degrees[row] < neighbours.shape[1]:
            distance = squared_distance(documents[lost], documents[row])
            if distance < least:
                nearest, least = row, distance
    if nearest >= 0:
        neighbours[nearest, degrees[nearest]] = lost
        degrees[nearest] += 1
    return nearest >= 0


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

    def find(self, queries: Float32[ndarray, "queries width"], k: int, effort: int, threads: int) -> Proposal:
        """See `Finder`."""
        rows, candidates = walk_all(self.graph, queries, self.embeddings, k, effort, threads)
        return Proposal(rows, float(candidates.mean()) if len(queries) else 0.0)

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
