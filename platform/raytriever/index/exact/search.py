"""Exact top-k by dot product over the blocks of a corpus, with an order that depends only on scores and ids.

Equal scores are ordered by descending document id, as in trec_eval, so a run file gives the same metrics in any tool.
Scores are those of `index.score.dot`, so the result has the same bytes for any blocks, any order of blocks, any number
of threads and any device. Most documents are ruled out by quick scores and proven bounds (`index.score`): of FAISS on a
CPU, of torch on a GPU (`device`). `even_blocks` splits large blocks and joins small ones, so the cost depends only on
the documents.

On a CPU, block after block:

1. FAISS's flat search returns a few more than k documents of a block, with quick scores in float32.
2. At least k documents score no less than the k-th highest quick score minus its error. A document whose quick score
   plus its error is below that, or below the k-th score of the earlier blocks, is excluded.
3. The others are scored exactly and merged into the ranking. If even the last document that FAISS returned is among
   them, others may be missing, and the query is searched again with more documents, in the end with all of them.

Memory in addition to the result on a CPU: one block, and about k candidates for each of a thousand queries. On a GPU:
most of its free memory for documents, some for tiles, and one block on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt64
from numpy import ndarray

from raytriever.errors import ConfigError, ModelError
from raytriever.index.exact.device import DOCUMENT_SHARE, ResidentDocuments, TorchScan, allocate, free_bytes
from raytriever.index.ranking import NONE, TieOrder, keys_of, merge_keys
from raytriever.index.score import LARGEST_NORM, check_finite, error_terms, pair_scores, refuse_forked
from raytriever.models.precision import default_device

# Queries that are searched at a time, and pairs of these and documents that are scored at a time.
QUERY_TILE, MOST_PAIRS = 1_024, 1 << 21
# Documents in addition to k, and the growth of their number for a query whose ranking was not proven.
MORE, _GROWTH = 32, 4


class Scan:
    """Rankings of queries over the blocks added so far.

    Args:
        queries: one embedding per row.
        exclude: for each query a document that is not returned, or -1.
    """

    def __init__(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        order: TieOrder,
        exclude: Int64[ndarray, " queries"] | None,
    ) -> None:
        refuse_forked()
        self._queries, self._order = np.ascontiguousarray(queries, np.float32), order
        self._excluded = np.full(len(queries), -1) if exclude is None else np.asarray(exclude, np.int64)
        self._best = np.full((len(queries), k), NONE)
        norms = _norms(self._queries, "query", np.arange(len(queries)))
        self._slope, _, self._offset = error_terms(norms, np.zeros_like(norms), queries.shape[1])
        self._faiss: Any = import_module("faiss")

    def add(self, positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"], largest: float) -> None:
        """Search a block of documents; `largest` is the result of `largest_norm`."""
        if not len(vectors) or not self._best.size:
            return
        errors = self._slope * largest + self._offset
        is_bounded = np.isfinite(errors)
        self._search(np.flatnonzero(is_bounded), self._best.shape[1] + MORE, errors, positions, vectors)
        self._search(np.flatnonzero(~is_bounded), len(vectors), errors, positions, vectors)

    def keys(self) -> UInt64[ndarray, "queries k"]:
        """Return the rankings as ascending keys."""
        return self._best

    def _search(
        self, queries: Int64[ndarray, " some"], wanted: int, errors: ndarray, positions: ndarray, vectors: ndarray
    ) -> None:
        """Merge a block into the rankings of some queries; FAISS returns `wanted` documents of each."""
        k, size = self._best.shape[1], len(vectors)
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        step = max(1, min(QUERY_TILE, MOST_PAIRS // min(wanted, size)))
        for start in range(0, len(queries), step):
            some = queries[start : start + step]
            if wanted >= size:
                rows = np.broadcast_to(np.arange(size), (len(some), size))
                self._merge(some, rows, np.ones(rows.shape, bool), positions, vectors)
                continue
            metric = self._faiss.METRIC_INNER_PRODUCT
            quick, rows = self._faiss.knn(self._queries[some], vectors, wanted, metric=metric)
            quick, error = quick.astype(np.float64), errors[some, None]
            earlier = self._order.read(self._best[some, -1:])[0]
            # One more than the k-th score, because one document may be excluded.
            is_candidate = quick >= np.maximum(earlier, quick[:, k : k + 1] - error) - error
            is_proven = ~is_candidate[:, -1]
            self._merge(some[is_proven], rows[is_proven], is_candidate[is_proven], positions, vectors)
            self._search(some[~is_proven], _GROWTH * wanted, errors, positions, vectors)

    def _merge(
        self,
        queries: Int64[ndarray, " some"],
        rows: Int64[ndarray, "some wanted"],
        is_candidate: Bool[ndarray, "some wanted"],
        positions: Int64[ndarray, " rows"],
        vectors: Float32[ndarray, "rows width"],
    ) -> None:
        """Score candidates exactly, and merge them into the rankings."""
        is_candidate = is_candidate & (positions[rows] != self._excluded[queries, None])
        of, column = np.nonzero(is_candidate)
        to = rows[of, column]
        keys = np.full(rows.shape, NONE)
        keys[of, column] = keys_of(
            pair_scores(self._queries, vectors, queries[of], to), self._order.ranks[positions[to]]
        )
        self._best[queries] = merge_keys([self._best[queries], keys], self._best.shape[1])


def largest_norm(positions: Int64[ndarray, " rows"], vectors: Float32[ndarray, "rows width"]) -> float:
    """Return an upper bound of the norms of a block of documents, infinite where float32 might overflow."""
    return float(_norms(vectors, "document", positions).max(initial=0))


def _norms(vectors: Float32[ndarray, "rows width"], name: str, positions: Int64[ndarray, " rows"]) -> ndarray:
    """Return upper bounds of the norms in float64, infinite where float32 might overflow.

    They cover what sums of squares in float32 lose: less than 1 %, and numbers below 2^-63.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors), dtype=np.float64) * 1.01 + 2.0**-50
    if not np.isfinite(norms).all():
        check_finite(vectors, name, positions)
    return np.where(norms > LARGEST_NORM, np.inf, norms)


MOST_ROWS, FEWEST_ROWS = 262_144, 32_768

# Pairs of the position of the first row, and embeddings.
Blocks = Iterable[tuple[int, Float32[ndarray, "rows width"]]]


def even_blocks(
    blocks: Blocks, width: int, documents: int
) -> Iterator[tuple[Int64[ndarray, " rows"], Float32[ndarray, "rows width"]]]:
    """Yield positions and embeddings, up to `MOST_ROWS` at a time; only blocks below `FEWEST_ROWS` are copied.

    Raises:
        ModelError: a block has another width than the queries.
        ValueError: a row lies beyond the corpus.
    """
    pending: list[tuple[ndarray, ndarray]] = []
    for first, values in blocks:
        if values.ndim != 2 or values.shape[1] != width:
            raise ModelError(
                f"embeddings of shape {values.shape} cannot be searched with queries of width {width}",
                f"block at document {first}",
                "encode both with the same model",
            )
        if first < 0 or first + len(values) > documents:
            raise ValueError(f"a block holds documents {first} to {first + len(values) - 1} of {documents}")
        for start in range(0, len(values), MOST_ROWS):
            piece = np.ascontiguousarray(values[start : start + MOST_ROWS], np.float32)
            positions = np.arange(first + start, first + start + len(piece))
            if len(piece) >= FEWEST_ROWS:
                yield positions, piece
                continue
            pending.append((positions, piece))
            if sum(len(rows) for rows, _ in pending) >= FEWEST_ROWS:
                yield _join(pending)
                pending = []
    if pending:
        yield _join(pending)


def _join(blocks: list[tuple[ndarray, ndarray]]) -> tuple[ndarray, ndarray]:
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([rows for rows, _ in blocks]), np.concatenate([values for _, values in blocks])


def tie_order(document_ids: Iterable[str]) -> Int64[ndarray, " documents"]:
    """Return each document's rank among documents with equal scores: 0 for the id that sorts last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = iter(document_ids)
    # As UTF-8, which sorts like the characters and needs less memory than Python's strings.
    pieces = iter(lambda: pa.array(islice(ids, FEWEST_ROWS), pa.string()), pa.array([], pa.string()))
    order = pc.sort_indices(pa.chunked_array(pieces, pa.string())).to_numpy()[::-1]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def top_k(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    k: int,
    ties: Int64[ndarray, " documents"],
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """Return the k best documents of each query in one array; see `top_k_of_blocks`."""
    return top_k_of_blocks(queries, [(0, documents)], k, ties, exclude, device)


def top_k_of_blocks(
    queries: Float32[ndarray, "queries width"],
    blocks: Blocks,
    k: int,
    ties: Int64[ndarray, " documents"],
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """Return the k highest dot products of each query and their documents, best first.

    Args:
        queries: one embedding per row.
        blocks: position of the first row, and embeddings, in any order and of any sizes. Each block is read once.
        k: number of documents per query, at least 1; at most `len(ties)` are returned.
        ties: result of `tie_order` for the whole corpus; decides the order of equal scores.
        exclude: for each query a document that is not returned, or -1.
        device: device of the quick scores; by default a CUDA device if there is one.

    Returns:
        Scores and documents; -inf and -1 if a query has fewer than k documents.
    """
    order = TieOrder.of(ties)
    return order.read(best_keys(queries, blocks, k, order, exclude, device))


class Corpus:
    """Corpus for several searches. A GPU gets a copy of its documents once for all of them, if they fit.

    Args:
        blocks: returns the blocks; see `top_k_of_blocks`.
        documents: largest number of documents in the blocks, by default that of the whole corpus.
    """

    def __init__(
        self,
        blocks: Callable[[], Blocks],
        order: TieOrder,
        device: torch.device | None = None,
        documents: int | None = None,
    ) -> None:
        self._blocks, self._order, self._device = blocks, order, device or default_device()
        self._documents = len(order.ranks) if documents is None else documents
        self._part: ResidentDocuments | None = None
        self._largest: dict[int, float] = {}  # see `best_keys`
        self._fits: bool | None = None  # None before the first search

    def top_k(
        self, queries: Float32[ndarray, "queries width"], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return the k best documents of each query; see `top_k_of_blocks`."""
        return self._order.read(self.keys(queries, k))

    def keys(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> UInt64[ndarray, "queries k"]:
        """Return the k best documents of each query as keys, which the tie order reads; see `best_keys`."""
        order, most, device = self._order, self._documents, self._device
        part = None if device.type == "cpu" else self._resident(queries.shape[1])
        if part is None:
            return best_keys(queries, self._blocks(), k, order, exclude, device, most, largest=self._largest)
        return TorchScan(queries, min(k, len(order.ranks)), order, exclude, device, most, corpus=part).keys()

    def is_copied_again(self, width: int) -> bool:
        """Return whether each search copies all documents to a GPU, because its memory does not hold them."""
        return self._device.type != "cpu" and self._resident(width) is None

    def _resident(self, width: int) -> ResidentDocuments | None:
        """Return all documents on the device, or None if they do not fit."""
        if self._fits is None:
            self._part = self._copy(width)
            self._fits = self._part is not None
        return self._part

    def _copy(self, width: int) -> ResidentDocuments | None:
        documents = self._documents
        part = allocate(documents, width, self._device, int(DOCUMENT_SHARE * free_bytes(self._device)))
        if part.free < documents:
            return None
        for positions, vectors in even_blocks(self._blocks(), width, len(self._order.ranks)):
            part.add(positions, self._order.ranks[positions].astype(np.int64), vectors)
        part.check()
        return part


def check_count(k: int) -> None:
    """Raise `ConfigError` if a number of documents is below 1."""
    if k < 1:
        raise ConfigError(f"k = {k} is out of range", remedy="use k of at least 1")


def best_keys(
    queries: Float32[ndarray, "queries width"],
    blocks: Blocks,
    k: int,
    order: TieOrder,
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
    documents: int | None = None,
    largest: dict[int, float] | None = None,
) -> UInt64[ndarray, "queries k"]:
    """Return the k best documents in some of the blocks, as keys for `ranking.merge_keys`; see `top_k_of_blocks`.

    `documents` is the largest number of documents in the blocks, by default that of the corpus. On a CPU `largest`
    keeps the largest norm of each block, for further searches of the same blocks.
    """
    check_count(k)
    device = device or default_device()
    size = min(k, len(order.ranks))
    most = len(order.ranks) if documents is None else documents
    scan: Scan | TorchScan
    if device.type == "cpu":
        scan = Scan(queries, size, order, exclude)
    else:
        scan = TorchScan(queries, size, order, exclude, device, most)
    largest = {} if largest is None else largest
    for number, (positions, vectors) in enumerate(even_blocks(blocks, queries.shape[1], len(order.ranks))):
        if isinstance(scan, TorchScan):
            scan.add(positions, vectors)
            continue
        if number not in largest:
            largest[number] = largest_norm(positions, vectors)
        scan.add(positions, vectors, largest[number])
    return scan.keys()
