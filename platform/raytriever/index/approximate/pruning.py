"""Pruning of a graph: which documents near a document become its neighbours, and which edges get a reverse edge.

Nearest first, a candidate is kept if it is nearer to the document than to every neighbour kept so far (the rule of the
relative neighbourhood graph): what another neighbour leads to needs no edge of its own, and edges point in many
directions. HNSW, Vamana and RoarGraph choose so, up to details. Where edges are few, free slots may be filled by the
nearest candidates that were passed over.

Everything here is a function of each document's own candidates, so threads change nothing."""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Int32, Int64
from numba import prange
from numpy import ndarray


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def squared_distance(one, other):  # type: ignore[no-untyped-def]
    """The squared Euclidean distance in float32."""
    total = np.float32(0)
    for place in range(np.uint64(len(one))):
        difference = one[place] - other[place]
        total += difference * difference
    return total


@numba.njit(cache=True, error_model="numpy")
def choose_neighbours(row, candidates, documents, fill, out):  # type: ignore[no-untyped-def]
    """Choose neighbours of a document.

    Args:
        row: the document.
        candidates: documents; itself and repeats do not count.
        documents: embeddings.
        fill: whether places left over go to the nearest of those passed over.
        out: is filled with the chosen, those that the rule keeps first, each part nearest first.

    Returns:
        How many were chosen.
    """
    ordered = np.unique(candidates)
    ordered = ordered[ordered != row]
    distances = np.empty(len(ordered), np.float32)
    for place in range(len(ordered)):
        distances[place] = squared_distance(documents[row], documents[ordered[place]])
    order = np.argsort(distances, kind="mergesort")
    passed, count = np.zeros(len(ordered), np.bool_), 0
    for place in order:
        if count == len(out):
            return count
        candidate = ordered[place]
        for kept in range(count):
            if squared_distance(documents[candidate], documents[out[kept]]) <= distances[place]:
                passed[place] = True
                break
        if not passed[place]:
            out[count] = candidate
            count += 1
    if fill:
        for place in order:
            if count == len(out):
                break
            if passed[place]:
                out[count] = ordered[place]
                count += 1
    return count


def add_reverse_edges(
    neighbours: Int32[ndarray, "documents width"],
    degrees: Int32[ndarray, " documents"],
    firsts: Int32[ndarray, " documents"],
    sources: Int64[ndarray, " sources"],
    fill: bool,
    documents: ndarray,
) -> None:
    """Let each neighbour of the sources lead back to them; where a row is full, its neighbours are chosen anew.

    Args:
        neighbours, degrees: of a `Graph`; changed.
        firsts: the edges of a row in columns before this one stay, and are not led back.
        sources: documents whose edges have no way back yet.
        fill: see `choose_neighbours`.
        documents: embeddings.
    """
    counts = (degrees[sources] - firsts[sources]).astype(np.int64)
    begin = np.repeat(sources, counts)
    columns = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts) + firsts[begin]
    end = neighbours[begin, columns]
    order = np.lexsort((begin, end))
    targets, starts = np.unique(end[order], return_index=True)
    back = begin[order].astype(np.int32)
    _lead_back(neighbours, degrees, firsts, targets, np.append(starts, len(back)), back, fill, documents)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _lead_back(  # type: ignore[no-untyped-def]
    neighbours, degrees, firsts, targets, starts, sources, fill, documents
):
    for number in prange(len(targets)):
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
def exclude(documents, left_out):  # type: ignore[no-untyped-def]
    """Documents that are not among those left out, in their order."""
    kept = np.empty_like(documents)
    count = 0
    for document in documents:
        there = False
        for other in left_out:
            if other == document:
                there = True
                break
        if not there:
            kept[count] = document
            count += 1
    return kept[:count]
