"""Exact top-k by dot product, in blocks, with an order that depends on nothing but scores and ids.

Equal scores are ordered by document id, descending, as trec_eval orders them, so that a run file read by any tool
gives the same figures. Memory is one block of scores, whatever the corpus.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray

QUERY_BLOCK = 256
DOCUMENT_BLOCK = 65_536


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
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """The k highest dot products of each query and the documents they belong to, best first.

    Args:
        queries: one embedding a row.
        documents: one embedding a row.
        k: how many to keep; fewer come back when there are fewer documents.
        ties: from `tie_order`, decides between equal scores.
    """
    k = min(k, len(documents))
    corpus = torch.from_numpy(documents)
    # Columns in tie order: the lower column wins, whatever block it stands in.
    columns = np.argsort(ties)
    scores = np.empty((len(queries), k), np.float32)
    found = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), QUERY_BLOCK):
        block = torch.from_numpy(queries[start : start + QUERY_BLOCK])
        best, where = _top_of_block(block, corpus, torch.from_numpy(columns), k)
        scores[start : start + len(block)] = best.numpy()
        found[start : start + len(block)] = columns[where.numpy()]
    return scores, found


def _top_of_block(
    queries: torch.Tensor, corpus: torch.Tensor, columns: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    best = torch.empty((len(queries), 0))
    where = torch.empty((len(queries), 0), dtype=torch.int64)
    for start in range(0, len(columns), DOCUMENT_BLOCK):
        part = columns[start : start + DOCUMENT_BLOCK]
        scores = torch.cat([best, queries @ corpus[part].T], dim=1)
        places = torch.cat([where, torch.arange(start, start + len(part)).expand(len(queries), -1)], dim=1)
        best, where = _ordered_top(scores, places, min(k, scores.shape[1]))
    return best, where


def _ordered_top(scores: torch.Tensor, places: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    best, chosen = scores.topk(k, dim=1)
    # topk keeps any of the documents that tie for the last place; those rows are sorted whole.
    torn = ((scores >= best[:, -1:]).sum(1) > k).nonzero()[:, 0]
    for row in torn.tolist():
        order = torch.from_numpy(np.lexsort((places[row].numpy(), -scores[row].numpy()))[:k].copy())
        best[row], chosen[row] = scores[row, order], order
    where = places.gather(1, chosen)
    order = torch.from_numpy(np.lexsort((where.numpy(), -best.numpy()), axis=1).copy())
    return best.gather(1, order), where.gather(1, order)
