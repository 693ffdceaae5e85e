"""Update an index to a changed corpus: new documents are added, and those that were removed are hidden.

Documents are recognised by their embeddings, bit by bit. FAISS adds rows to an inverted file and to an HNSW graph. It
removes none from a graph, so rows without a document stay, and searches skip them. The centres, codes and layers are
those of the first documents: after more than a fifth of the rows was added or hidden, the index is built again. Vamana
and RoarGraph are built again after every change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.keys import WIDTH, KeyIndex, Keys, keys_of
from raytriever.index.approximate.build import DocumentVectors
from raytriever.index.approximate.faiss_finders import Hnsw, Ivf
from raytriever.index.approximate.index import ApproximateIndex
from raytriever.index.score import check_finite

MOST_CHANGED = 0.2  # of the rows with which the index was built


@activity("updating the index")
def update_index(
    index: ApproximateIndex,
    rows: DocumentVectors,
    built: int,
    threads: int,
    join: Callable[[Sequence[ndarray], tuple[int, int]], ndarray] = lambda blocks, shape: np.concatenate(blocks),
) -> ApproximateIndex | None:
    """Return the index of changed documents; None if it should be built again.

    Args:
        index: index of the earlier documents; its finder is changed.
        rows: the documents now.
        built: number of rows with which the index was built.
        threads: number of threads; only the graph of HNSW depends on it.
        join: makes the embeddings of the result from blocks, given their shape; by default in memory.

    Raises:
        ModelError: an embedding is not finite.
    """
    finder = index.finder
    if not isinstance(finder, Ivf | Hnsw):
        return None
    check_finite(rows.embeddings, "document", rows.documents)
    earlier, now = _matches(_keys(index.embeddings), _keys(rows.embeddings))
    added = np.setdiff1d(np.arange(len(rows.documents)), now)
    documents = np.full(len(index.documents), -1)
    documents[earlier] = rows.documents[now]
    documents = np.concatenate([documents, rows.documents[added]])
    hidden = np.flatnonzero(documents < 0)
    if len(documents) - built + len(hidden) > MOST_CHANGED * built:
        return None
    new = np.ascontiguousarray(rows.embeddings[added], np.float32)
    return ApproximateIndex(
        finder=replace(finder.reserve(len(documents)).add(new, threads), hidden=hidden),
        embeddings=join([index.embeddings, new], (len(documents), new.shape[1])),
        documents=documents,
        ties=rows.ties,
        effort=index.effort,
    )


def _keys(embeddings: Float32[ndarray, "rows width"]) -> Keys:
    def hashes() -> Iterator[bytes]:
        for row in np.ascontiguousarray(embeddings, np.float32):
            yield hashlib.blake2b(row, digest_size=WIDTH).digest()

    return keys_of(hashes())


def _matches(earlier: Keys, now: Keys) -> tuple[Int64[ndarray, " matches"], Int64[ndarray, " matches"]]:
    """Return the rows of equal keys, each row at most once."""
    first = KeyIndex(np.concatenate([earlier, now])).first()
    most = len(first)
    numbers, of_others = _numbered(first[: len(earlier)], most), _numbered(first[len(earlier) :], most)
    _, rows, others = np.intersect1d(numbers, of_others, assume_unique=True, return_indices=True)
    return rows, others


def _numbered(groups: Int64[ndarray, " rows"], most: int) -> Int64[ndarray, " rows"]:
    """Return a number for each row that tells the first row of a group from its second, and so on."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(groups[order]) > 0)[: len(groups)])
    within = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
    numbers = np.empty(len(groups), np.int64)
    numbers[order] = groups[order] * most + within
    return numbers
