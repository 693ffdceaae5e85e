"""Exact top-k by dot product over the parts of a corpus, with an order that depends on nothing but scores and ids.

Equal scores are ordered by document id, descending, as trec_eval orders them, so that a run file read by any tool
gives the same figures. A score is `score.dot`'s, so the answer has the same bytes whatever the parts, their order,
the threads and the device. Most documents are ruled out by quick scores and proved bounds (`arithmetic`, `sift`).

Memory beside the answer: one part, a tile of scores, and sieves of about 3 k documents for some thousand queries.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray

from raytriever.errors import ConfigError
from raytriever.index.parts import Parts, even_parts
from raytriever.index.ranking import Order
from raytriever.index.scan import Scan
from raytriever.index.scan_torch import TorchScan


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
    """`top_k_of_parts` for a corpus that is one array."""
    return top_k_of_parts(queries, [(0, documents)], k, ties, exclude, device)


def top_k_of_parts(
    queries: Float32[ndarray, "queries width"],
    parts: Parts,
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
    order = Order.of(ties)
    return order.read(best_keys(queries, parts, k, order, exclude, device))


def best_keys(
    queries: Float32[ndarray, "queries width"],
    parts: Parts,
    k: int,
    order: Order,
    exclude: Int64[ndarray, " queries"] | None = None,
    device: torch.device | None = None,
) -> UInt64[ndarray, "queries k"]:
    """`top_k_of_parts` over some of the parts, as keys for `ranking.merge_keys`."""
    if k < 1:
        raise ConfigError(f"k = {k} is out of range", remedy="ask for at least 1 document")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kept = min(k, len(order.places))
    scan: Scan | TorchScan
    if device.type == "cpu":
        scan = Scan(queries, kept, order, exclude)
    else:
        scan = TorchScan(queries, kept, order, exclude, device)
    for positions, vectors in even_parts(parts, queries.shape[1], len(order.places)):
        scan.take(positions, vectors)
    return scan.keys()
