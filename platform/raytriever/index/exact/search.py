"""Exact top-k by dot product over the blocks of a corpus, with an order that depends only on scores and ids.

Equal scores are ordered by descending document id, as in trec_eval, so a run file gives the same metrics in any tool.
Scores are those of `index.score.dot`, so the result has the same bytes for any blocks, any order of blocks, any number
of threads and any device. Most documents are ruled out by quick scores and proven bounds (`index.score`): of FAISS on a
CPU (`scan`), of torch on a GPU (`scan_torch`). `even_blocks` splits large blocks and joins small ones, so the cost
depends only on the documents.

Memory in addition to the result on a CPU: one block, and about k candidates for each of a thousand queries. On a GPU:
most of its free memory for documents, some for tiles, and one block on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.errors import ConfigError, ModelError
from raytriever.index.exact.resident import ResidentDocuments
from raytriever.index.exact.scan import Scan
from raytriever.index.exact.scan_torch import DOCUMENT_SHARE, TorchScan, allocate, free_bytes
from raytriever.index.ranking import TieOrder
from raytriever.models.precision import default_device

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

    Raises:
        ModelError: an embedding is not finite, or the widths differ.
        ConfigError: k is below 1.
    """
    order = TieOrder.of(ties)
    return order.read(best_keys(queries, blocks, k, order, exclude, device))


class Corpus:
    """Corpus for several searches. A GPU gets a copy of its documents once for all of them, if they fit.

    Args:
        blocks: returns the blocks; see `top_k_of_blocks`.
        order: tie order of the whole corpus.
        device: see `top_k_of_blocks`.
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
        order, most = self._order, self._documents
        part = None if self._device.type == "cpu" else self._resident(queries.shape[1])
        if part is None:
            return best_keys(queries, self._blocks(), k, order, exclude, self._device, most)
        return TorchScan(queries, min(k, len(order.ranks)), order, exclude, self._device, most, corpus=part).keys()

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


def best_keys(
    queries: Float32[ndarray, "queries width"],
    blocks: Blocks,
    k: int,
    order: TieOrder,
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
    documents: int | None = None,
    before: UInt64[ndarray, "queries k"] | None = None,
) -> UInt64[ndarray, "queries k"]:
    """Return the k best documents in some of the blocks, as keys for `ranking.merge_keys`; see `top_k_of_blocks`.

    `documents` is the largest number of documents in the blocks, by default that of the corpus. `before` are the keys
    of other blocks; these are added to them, in place.
    """
    if k < 1:
        raise ConfigError(f"k = {k} is out of range", remedy="use k of at least 1")
    device = device or default_device()
    size = min(k, len(order.ranks))
    most = len(order.ranks) if documents is None else documents
    scan: Scan | TorchScan
    if device.type == "cpu":
        scan = Scan(queries, size, order, exclude, before)
    else:
        scan = TorchScan(queries, size, order, exclude, device, most, before=before)
    for positions, vectors in even_blocks(blocks, queries.shape[1], len(order.ranks)):
        scan.add(positions, vectors)
    return scan.keys()
