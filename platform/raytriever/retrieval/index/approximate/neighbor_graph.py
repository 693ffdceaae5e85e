"""Directed graph over the documents of a corpus: the search for documents near a query, and the choice of edges.

Neighbors are stored in rows of equal length, so a walk reads them by row number, and one array in a file holds them.

A search is a best-first walk with a beam of the best documents scored so far. Each step expands the best document that
is not expanded yet: its neighbors without a score are scored and inserted into the beam. The walk ends when every
document of the beam is expanded. A wider beam finds more documents, but also scores more.

    score = query . document - half,   half = |document|^2 / 2 for the nearest documents, 0 for the dot product

An entry of the beam is one integer with three fields: the inverted score, the document, and a bit for expanded
documents. Smaller integers are better. So the order depends only on scores and documents, and the beam is one array.

Pruning chooses the neighbors of a document among candidates, beginning with the nearest. A candidate is kept if it is
nearer to the document than to every neighbor kept so far (the rule of the relative neighborhood graph). So edges point
in many directions, and a candidate that is near a kept neighbor gets no edge. HNSW, Vamana and RoarGraph use this rule
with small differences. Free slots may be filled by the nearest rejected candidates. The result for a document depends
only on its candidates, so the number of threads does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from jaxtyping import Float32, Int32, Int64
from numpy import ndarray

from raytriever.core.errors import StorageError
from raytriever.core.numba_threads import in_threads
from raytriever.core.reading.arrays import Shape, read_array

_FILES = ("neighbours.npy", "degrees.npy", "entry.npy")
_ROW, _SHIFT, _ONE = np.uint64(0x7FFF_FFFF), np.uint64(32), np.uint64(1)
_SIGN, _SIGN_OFF = np.uint64(31), np.uint64(0x7FFF_FFFF)


def read_only(vectors: Float32[ndarray, "rows dim"]) -> Float32[ndarray, "rows dim"]:
    """Return a read-only view. Memory-mapped arrays are read-only, and numba would compile again for writable ones."""
    view = np.ascontiguousarray(vectors, np.float32).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class Graph:
    """Directed graph over documents. Row i of `neighbors` has `degrees[i]` distinct documents, then -1. Every walk
    begins at the document `entry`."""

    neighbors: Int32[ndarray, "documents degree"]
    degrees: Int32[ndarray, " documents"]
    entry: int

    def save(self, folder: Path) -> None:
        """Write the graph as arrays into a folder."""
        for name, array in zip(_FILES, (self.neighbors, self.degrees, np.array([self.entry])), strict=True):
            np.save(folder / name, array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, documents: int) -> Graph:
        """Read the files of `save`. Raise `StorageError` unless they are a graph of this many documents: in another
        graph, a walk could read beyond the corpus."""
        shapes: tuple[Shape, ...] = ((documents, None), (documents,), (1,))
        neighbors, degrees, entry = (
            read_array(folder / name, [dtype], shape, "build the index again")
            for name, dtype, shape in zip(_FILES, ("int32", "int32", "int64"), shapes, strict=True)
        )
        is_valid = (
            0 <= int(entry[0]) < documents
            and degrees.min() >= 0
            and degrees.max() <= neighbors.shape[1]
            and neighbors.max(initial=-1) < documents
            and bool(((neighbors >= 0) == (np.arange(neighbors.shape[1]) < degrees[:, None])).all())
        )
        if not is_valid:
            raise StorageError(f"is not a graph of {documents:,} documents", str(folder), "build the index again")
        return cls(neighbors, degrees, int(entry[0]))


@numba.njit(cache=True, error_model="numpy")
def mark_reachable(neighbors, degrees, begin, reached):  # type: ignore[no-untyped-def]
    """Mark all documents of a graph that are reachable from the document `begin`, which must not be marked yet."""
    queue = np.empty(len(degrees), np.int64)
    queue[0], reached[begin] = begin, True
    head, count = 0, 1
    while head < count:
        row = queue[head]
        head += 1
        for column in range(degrees[row]):
            other = neighbors[row, column]
            if not reached[other]:
                reached[other] = True
                queue[count] = other
                count += 1


def walk_all(
    graph: Graph,
    queries: Float32[ndarray, "queries dim"],
    documents: Float32[ndarray, "documents dim"],
    k: int,
    beam: int,
    threads: int,
) -> tuple[Int64[ndarray, "queries k"], Int64[ndarray, " queries"]]:
    """Return the k best documents by dot product that a walk finds for each query, and the number of scored documents.

    Embeddings must be finite. Unused entries are -1. The number of threads does not change the result."""
    results, visited = np.full((len(queries), k), -1, np.int64), np.zeros(len(queries), np.int64)
    texts = read_only(queries), read_only(documents), np.empty(0, np.float32)
    walks = graph.neighbors, graph.degrees, graph.entry, max(beam, k)
    in_threads(_walk_some, len(queries), *texts, *walks, results, visited, threads=threads)
    return results, visited


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _walk_some(  # type: ignore[no-untyped-def]
    first, last, queries, documents, halves, neighbors, degrees, entry, beam, results, visited
):
    seen = np.empty((len(documents) + 63) // 64, np.uint64)
    pool = np.empty(beam, np.uint64)
    for query in range(first, last):
        size, scored = walk(queries[query], documents, halves, neighbors, degrees, entry, seen, pool)
        visited[query] = scored
        for column in range(min(size, results.shape[1])):
            results[query, column] = row_of(pool[column])


@numba.njit(cache=True, error_model="numpy")
def row_of(key):  # type: ignore[no-untyped-def]
    """Return the document of an entry of the beam."""
    return np.int64((key >> _ONE) & _ROW)


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def dot_product(query, document):  # type: ignore[no-untyped-def]
    """Return the dot product in float32. The order of the additions is the fastest one."""
    total = np.float32(0)
    for i in range(np.uint64(len(query))):
        total += query[i] * document[i]
    return total


@numba.njit(cache=True, error_model="numpy")
def _key(score, row):  # type: ignore[no-untyped-def]
    bits = np.uint64(np.float32(score + np.float32(0)).view(np.uint32))
    descending = bits if bits >> _SIGN else bits ^ _SIGN_OFF
    return (descending << _SHIFT) | (np.uint64(row) << _ONE)


@numba.njit(cache=True, error_model="numpy")
def walk(query, documents, halves, neighbors, degrees, entry, seen, pool):  # type: ignore[no-untyped-def]
    """Fill `pool` with the final beam of a walk. Return its size and the number of scored documents.

    `halves` is empty for the dot product. `seen` is a buffer with a bit for every document."""
    seen[:] = np.uint64(0)
    seen[entry >> 6] = _ONE << np.uint64(entry & 63)
    score = dot_product(query, documents[entry])
    pool[0] = _key(score - halves[entry] if len(halves) else score, entry)
    size, scored, index = 1, 1, 0
    while index < size:
        if pool[index] & _ONE:
            index += 1
            continue
        pool[index] |= _ONE
        row = row_of(pool[index])
        first = index + 1
        for column in range(degrees[row]):
            other = neighbors[row, column]
            word, bit = other >> 6, _ONE << np.uint64(other & 63)
            if seen[word] & bit:
                continue
            seen[word] |= bit
            score = dot_product(query, documents[other])
            scored += 1
            key = _key(score - halves[other] if len(halves) else score, other)
            if size == len(pool):
                if key > pool[size - 1]:
                    continue
            else:
                size += 1
            first = min(first, _insert(pool, size, key))
        index = first
    return size, scored


@numba.njit(cache=True, error_model="numpy")
def _insert(pool, size, key):  # type: ignore[no-untyped-def]
    low, high = 0, size - 1
    while low < high:
        middle = (low + high) >> 1
        if pool[middle] < key:
            low = middle + 1
        else:
            high = middle
    for index in range(size - 1, low, -1):
        pool[index] = pool[index - 1]
    pool[low] = key
    return low


@numba.njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def squared_distance(first, other):  # type: ignore[no-untyped-def]
    """Return the squared Euclidean distance in float32."""
    total = np.float32(0)
    for i in range(np.uint64(len(first))):
        difference = first[i] - other[i]
        total += difference * difference
    return total


@numba.njit(cache=True, error_model="numpy")
def choose_neighbors(row, candidates, documents, fill, out):  # type: ignore[no-untyped-def]
    """Choose neighbors of a document.

    Args:
        candidates: documents; the document itself and repeated entries are ignored.
        fill: whether to fill free slots with the nearest rejected candidates.
        out: receives the chosen documents: first those that the rule keeps, then the fillers, both nearest first.

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
    neighbors: Int32[ndarray, "documents dim"],
    degrees: Int32[ndarray, " documents"],
    firsts: Int32[ndarray, " documents"],
    sources: Int64[ndarray, " sources"],
    fill: bool,
    documents: ndarray,
    threads: int,
) -> None:
    """Add an edge from each neighbor of a source back to the source. In a full row, choose the neighbors again.

    Args:
        neighbors, degrees: arrays of a `Graph`; changed in place.
        firsts: for each row, its first column that may change. The edges before it are kept and get no reverse edges.
        sources: documents whose edges have no reverse edge yet.
    """
    counts = (degrees[sources] - firsts[sources]).astype(np.int64)
    begin = np.repeat(sources, counts)
    columns = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts) + firsts[begin]
    end = neighbors[begin, columns]
    order = np.lexsort((begin, end))
    targets, starts = np.unique(end[order], return_index=True)
    back = begin[order].astype(np.int32)
    bounds = np.append(starts, len(back))
    arrays = (neighbors, degrees, firsts, targets, bounds, back, fill, documents)
    in_threads(_add_reverse, len(targets), *arrays, threads=threads)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_reverse(  # type: ignore[no-untyped-def]
    begin, end, neighbors, degrees, firsts, targets, starts, sources, fill, documents
):
    for number in range(begin, end):
        row = np.int64(targets[number])
        first = np.int64(firsts[row])
        new = exclude(sources[starts[number] : starts[number + 1]], neighbors[row, :first])
        candidates = np.unique(np.concatenate((neighbors[row, first : degrees[row]], new)))
        chosen = np.empty(neighbors.shape[1] - first, np.int32)
        if len(candidates) <= len(chosen):
            count = len(candidates)
            chosen[:count] = candidates
        else:
            count = choose_neighbors(row, candidates, documents, fill, chosen)
        neighbors[row, first : first + count] = chosen[:count]
        neighbors[row, first + count :] = -1
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
