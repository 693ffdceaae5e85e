"""Pruning of a graph: choose the neighbours of a document among near documents, and add reverse edges.

Candidates are examined from the nearest on. A candidate is kept if it is nearer to the document than to every neighbour
kept so far (the rule of the relative neighbourhood graph). So edges point in many directions, and documents that
another neighbour leads to need no edge. HNSW, Vamana and RoarGraph use this rule with small differences. Free slots
may be filled by the nearest rejected candidates.

The result for a document depends only on its candidates, so the number of threads does not matter."""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Int32, Int64
from numpy import ndarray

from raytriever.vectors import in_threads


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def squared_distance(one, other):  # type: ignore[no-untyped-def]
    """Return the squared Euclidean distance in float32."""
    total = np.float32(0)
    for i in range(np.uint64(len(one))):
        difference = one[i] - other[i]
        total += difference * difference
    return total


@numba.njit(cache=True, error_model="numpy")
def choose_neighbours(row, candidates, documents, fill, out):  # type: ignore[no-untyped-def]
    """Choose neighbours of a document.

    Args:
        row: the document.
        candidates: documents; the document itself and repeated entries are ignored.
        documents: embeddings.
        fill: fill free slots with the nearest rejected candidates.
        out: receives the chosen documents: first those that the rule keeps, then the filled ones, each nearest first.

    Returns:
        Number of chosen documents.
    """
    ordered = np.unique(candidates)
    ordered = ordered[ordered != row]
    distances = np.empty(len(ordered), np.float32)
    for i in range(len(ordered)):
        distances[i] = squared_distance(documents[row], documents[ordered[i]])
    order = np.argsort(distances, kind="mergesort")
    is_rejected, count = np.zeros(len(ordered), np.bool_), 0
    for i in order:
        if count == len(out):
            return count
        candidate = ordered[i]
        for kept in range(count):
            if squared_distance(documents[candidate], documents[out[kept]]) <= distances[i]:
                is_rejected[i] = True
                break
        if not is_rejected[i]:
            out[count] = candidate
            count += 1
    if fill:
        for i in order:
            if count == len(out):
                break
            if is_rejected[i]:
                out[count] = ordered[i]
                count += 1
    return count


def add_reverse_edges(
    neighbours: Int32[ndarray, "documents width"],
    degrees: Int32[ndarray, " documents"],
    firsts: Int32[ndarray, " documents"],
    sources: Int64[ndarray, " sources"],
    fill: bool,
    documents: ndarray,
    threads: int,
) -> None:
    """Add an edge from each neighbour of the sources back to them; choose the neighbours of full rows again.

    Args:
        neighbours, degrees: arrays of a `Graph`; changed in place.
        firsts: for each row, edges in columns before this one are kept and get no reverse edge.
        sources: documents whose edges have no reverse edge yet.
        fill: see `choose_neighbours`.
        documents: embeddings.
        threads: number of threads.
    """
    counts = (degrees[sources] - firsts[sources]).astype(np.int64)
    begin = np.repeat(sources, counts)
    columns = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts) + firsts[begin]
    end = neighbours[begin, columns]
    order = np.lexsort((begin, end))
    targets, starts = np.unique(end[order], return_index=True)
    back = begin[order].astype(np.int32)
    bounds = np.append(starts, len(back))
    arrays = (neighbours, degrees, firsts, targets, bounds, back, fill, documents)
    in_threads(_add_reverse, len(targets), *arrays, threads=threads)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_reverse(  # type: ignore[no-untyped-def]
    begin, end, neighbours, degrees, firsts, targets, starts, sources, fill, documents
):
    for number in range(begin, end):
        row = np.int64(targets[number])
        first = np.int64(firsts[row])
        new = exclude(sources[starts[number] : starts[number + 1]], neighbours[row, :first])
        candidates = np.unique(np.concatenate((neighbours[row, first : degrees[row]], new)))
        chosen = np.empty(neighbours.shape[1] - first, np.int32)
        if len(candidates) <= len(chosen):
            count = len(candidates)
            chosen[:count] = candidates
        else:
            count = choose_neighbours(row, candidates, documents, fill, chosen)
        neighbours[row, first : first + count] = chosen[:count]
        neighbours[row, first + count :] = -1
        degrees[row] = first + count


@numba.njit(cache=True, error_model="numpy")
def exclude(documents, excluded):  # type: ignore[no-untyped-def]
    """Return the documents that are not excluded, in their order."""
    remaining = np.empty_like(documents)
    count = 0
    for document in documents:
        is_excluded = False
        for other in excluded:
            if other == document:
                is_excluded = True
                break
        if not is_excluded:
            remaining[count] = document
            count += 1
    return remaining[:count]
