"""Exact top-k by dot product over the blocks of a corpus, with an order that depends on nothing but scores and ids.

Equal scores are ordered by document id, descending, as trec_eval orders them, so that a run file read by any tool
gives the same figures. Scores are those of `index.score.dot`, so the result has the same bytes whatever the blocks,
their order, the threads and the device. Most documents are ruled out by quick scores and proven bounds
(`index.score`, `sift`). `Blocks` cuts large blocks and joins small ones, so that the cost depends on the documents
alone.

Memory besides the result: one block, a tile of scores, and sieves of about 3 k documents for some thousand queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.errors import ConfigError, ModelError
from raytriever.index.exact.scan import Scan
from raytriever.index.exact.scan_torch import TorchScan
from raytriever.index.ranking import TieOrder

MOST_ROWS, FEWEST_ROWS = 262_144, 32_768

# The position of the first row, and embeddings.
Blocks = Iterable[tuple[int, Float32[ndarray, "rows width"]]]


def even_blocks(
    parts: Blocks, width: int, documents: int
) -> Iterator[tuple[Int64[ndarray, " rows"], Float32[ndarray, "rows width"]]]:
    """Positions and embeddings, up to `MOST_ROWS` at a time; only parts below `FEWEST_ROWS` are copied.

    Raises:
        ModelError: a part has another width than the queries.
        ValueError: a row lies beyond the corpus.
    """
    waiting: list[tuple[ndarray, ndarray]] = []
    for first, values in parts:
        if values.ndim != 2 or values.shape[1] != width:
            raise ModelError(
                f"embeddings of shape {values.shape} cannot be searched with queries of width {width}",
                f"part at document {first}",
                "encode both with the same model",
            )
        if first < 0 or first + len(values) > documents:
            raise ValueError(f"a part holds documents {first} to {first + len(values) - 1} of {documents}")
        for start in range(0, len(values), MOST_ROWS):
            piece = np.ascontiguousarray(values[start : start + MOST_ROWS], np.float32)
            positions = np.arange(first + start, first + start + len(piece))
            if len(piece) >= FEWEST_ROWS:
                yield positions, piece
                continue
            waiting.append((positions, piece))
            if sum(len(rows) for rows, _ in waiting) >= FEWEST_ROWS:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(waiting: list[tuple[ndarray, ndarray]]) -> tuple[ndarray, ndarray]:
    if len(waiting) == 1:
        return waiting[0]
    return np.concatenate([rows for rows, _ in waiting]), np.concatenate([values for _, values in waiting])


def tie_order(document_ids: Iterable[str]) -> Int64[ndarray, " documents"]:
    """Each document's place among equals: 0 for the id that sorts last."""
    order = np.argsort(np.array(list(document_ids), dtype=object), kind="stable")[::-1]
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def top_k(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    k: int,
    ties: Int64[ndarray, " documents"],
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """`top_k_of_blocks` for a corpus that is one array."""
    return top_k_of_blocks(queries, [(0, documents)], k, ties, exclude, device)


def top_k_of_blocks(
    queries: Float32[ndarray, "queries width"],
    parts: Blocks,
    k: int,
    ties: Int64[ndarray, " documents"],
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """The k highest dot products of each query and the documents they belong to, best first.

    Args:
        queries: one embedding a row.
        parts: position of the first row, and embeddings; in any order, of any sizes. Each is read once.
        k: how many to keep, at least 1; `len(ties)` at most come back.
        ties: from `tie_order`, for the whole corpus; decides between equal scores.
        exclude: for each query a document that it must not find, or -1.
        device: where quick scores are made; a CUDA device if there is one.

    Returns:
        Scores and documents; -inf and -1 where a query has fewer than k documents.

    Raises:
        ModelError: an embedding is not finite, or the widths differ.
        ConfigError: k is below 1.
    """
    order = TieOrder.of(ties)
    return order.read(best_keys(queries, parts, k, order, exclude, device))


def best_keys(
    queries: Float32[ndarray, "queries width"],
    parts: Blocks,
    k: int,
    order: TieOrder,
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
) -> UInt64[ndarray, "queries k"]:
    """`top_k_of_blocks` over some of the parts, as keys for `ranking.merge_keys`."""
    if k < 1:
        raise ConfigError(f"k = {k} is out of range", remedy="ask for at least 1 document")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kept = min(k, len(order.ranks))
    scan: Scan | TorchScan
    if device.type == "cpu":
        scan = Scan(queries, kept, order, exclude)
    else:
        scan = TorchScan(queries, kept, order, exclude, device)
    for positions, vectors in even_blocks(parts, queries.shape[1], len(order.ranks)):
        scan.take(positions, vectors)
    return scan.keys()


class Index(Protocol):
    """Finds documents by dot product."""

    def search(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Scores and documents, best first, each document once; -inf and -1 where a query has fewer than k.

        An exact index gives `exact.top_k_of_blocks`' bytes. Another may miss documents where k is less than half of
        them, but scores those it finds by `score.pair_scores` and orders them the same.

        Args:
            queries: one embedding a row.
            k: how many documents, at least 1.
            exclude: for each query a document that it must not find, or -1.
        """
        ...


@dataclass(frozen=True)
class ExactIndex:
    """Reads the corpus anew for every search, on a GPU where torch has one; holds nothing.

    Args:
        parts: gives position of the first row and embeddings, such as `EmbeddingStore.parts`.
        ties: from `exact.tie_order`.
    """

    blocks: Callable[[], Blocks]
    ties: Int64[ndarray, " documents"]

    def search(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """See `Index`."""
        return top_k_of_blocks(queries, self.blocks(), k, self.ties, exclude)
