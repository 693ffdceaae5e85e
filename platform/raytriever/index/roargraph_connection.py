"""RoarGraph's last step: edges that let a walk from the entry reach every document (connectivity enhancement).

Every document is searched for in the graph as it is so far; of the documents in the beam, `acquire` chooses further
neighbours, which get edges back. Documents take their turns in an order drawn from the seed, in batches: all of a
batch search the graph that the batches before have left, so the result is the same at any number of threads. What
still has no path from the entry is then led to by the nearest document that has one and has room.

Distances are Euclidean here, between documents; of normalised embeddings that is the order of their dot products.

Source: see `roargraph_projection`; the batches and the last edges are ours.
"""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
from jaxtyping import Float32, Int32
from numba import prange
from numpy import ndarray

from raytriever.index.graph import Graph, mark_reachable
from raytriever.index.graph_prune import acquire, add_ways_back, apart, without
from raytriever.index.graph_walk import row_of, walk
from raytriever.index.score import read_only

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
        add_ways_back(wide, graph.degrees, degrees, batch, False, documents)
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
            count = acquire(row, rows[:size], documents, False, chosen)
            fresh = without(chosen[:count], neighbours[row, : degrees[row]])
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
            distance = apart(documents[lost], documents[row])
            if distance < least:
                nearest, least = row, distance
    if nearest >= 0:
        neighbours[nearest, degrees[nearest]] = lost
        degrees[nearest] += 1
    return nearest >= 0
