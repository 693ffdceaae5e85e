"""A directed graph over the documents of a corpus, walked to find documents near a query.

Neighbours lie in rows of equal width, so that a walk reads them where the row's number says, and a file of them is an
array.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from jaxtyping import Bool, Int32
from numpy import ndarray

from raytriever.errors import StorageError
from raytriever.reading.arrays import Shape, read_array
from raytriever.storage import disk_errors

_FILES = ("neighbours.npy", "degrees.npy", "entry.npy")


@dataclass(frozen=True)
class Graph:
    """Who leads to whom.

    Args:
        neighbours: documents, each once; those of row i are the first `degrees[i]`, the rest is -1.
        degrees: how many neighbours each document has.
        entry: where a walk begins.
    """

    neighbours: Int32[ndarray, "documents width"]
    degrees: Int32[ndarray, " documents"]
    entry: int

    def save(self, folder: Path) -> None:
        """Write the graph as arrays into a folder."""
        for name, array in zip(_FILES, (self.neighbours, self.degrees, np.array([self.entry])), strict=True):
            np.save(folder / name, array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, documents: int) -> Graph:
        """Read what `save` wrote for so many documents.

        Raises:
            StorageError: the files are none of a graph of that size; a walk over them would leave the corpus.
        """
        shapes: tuple[Shape, ...] = ((documents, None), (documents,), (1,))
        with disk_errors(folder, reading=True):
            neighbours, degrees, entry = (
                read_array(folder / name, [dtype], shape, "build the index again")
                for name, dtype, shape in zip(_FILES, ("int32", "int32", "int64"), shapes, strict=True)
            )
        fits = (
            0 <= int(entry[0]) < documents
            and degrees.min() >= 0
            and degrees.max() <= neighbours.shape[1]
            and neighbours.max(initial=-1) < documents
            and bool(((neighbours >= 0) == (np.arange(neighbours.shape[1]) < degrees[:, None])).all())
        )
        if not fits:
            raise StorageError(f"holds no graph of {documents:,} documents", str(folder), "build the index again")
        return cls(neighbours, degrees, int(entry[0]))


def mark_reachable(graph: Graph, begin: int, reached: Bool[ndarray, " documents"]) -> None:
    """Mark the documents that some path leads to from one that was not marked yet."""
    _mark(graph.neighbours, graph.degrees, begin, reached)


@numba.njit(cache=True, error_model="numpy")
def _mark(neighbours, degrees, begin, reached):  # type: ignore[no-untyped-def]
    waiting = np.empty(len(degrees), np.int64)
    waiting[0], reached[begin] = begin, True
    place, count = 0, 1
    while place < count:
        row = waiting[place]
        place += 1
        for column in range(degrees[row]):
            other = neighbours[row, column]
            if not reached[other]:
                reached[other] = True
                waiting[count] = other
                count += 1
