"""RoarGraph's first two steps: a bipartite graph of training queries and documents, projected onto the documents.

1. Every training query leads to its `nearest` closest documents, and its closest one, the pivot, leads back to it.
2. Two steps in that graph lead from a pivot to the documents close to the queries it is closest to. Those are its
   candidates: near each other for the queries, however far apart they lie among documents. `acquire` chooses among
   them by their distances to the pivot, and fills places left over. Edges are given a way back.

Documents that no training query is close to have no edges yet (`roargraph_connection`).

Source: Chen, Zhang, He, Jing and Wang, RoarGraph: A Projected Bipartite Graph for Efficient Cross-Modal Approximate
Nearest Neighbor Search, PVLDB 17(11), 2024.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float32, Int32
from numba import prange
from numpy import ndarray

from raytriever.index.graph_prune import acquire, add_ways_back
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
        add_ways_back(neighbours, degrees, np.zeros_like(degrees), pivots, True, read_only(documents))
    return neighbours, degrees


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _project(nearest, pivots, bounds, documents, neighbours, degrees):  # type: ignore[no-untyped-def]
    for number in prange(len(pivots)):
        pivot = np.int64(pivots[number])
        candidates = nearest[bounds[number] : bounds[number + 1]].copy().reshape(-1)
        chosen = np.empty(neighbours.shape[1], np.int32)
        count = acquire(pivot, candidates, documents, True, chosen)
        neighbours[pivot, :count] = chosen[:count]
        degrees[pivot] = count
