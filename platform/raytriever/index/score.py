"""Scores of query-document pairs: exact scores, and proven bounds of the error of quick scores.

The exact score is the dot product in float64, rounded to float32, and one routine computes it for all callers. The
product of two float32 numbers is exact in float64. The order of the sums depends on the width alone: element i is
added to elements i + h, i + 2h, ... with h an eighth of the width, then halves are folded. So a score is within one
rounding of the true dot product, and it has the same bits in every block, shard, thread, device and processor.

Quick scores come from a matrix product, in float32, or on a GPU in bf16. Let q = q' + r and d = d' + s, where q' and d'
are the factors (rounded to bf16, or r = s = 0), and let n be the width:

    |q·d - q'·d'|           <= |r| |d| + |q'| |s|            (Cauchy-Schwarz)
    |q'·d' - its float32 sum| <= γ |q'| |d'|, γ = m u / (1 - m u), u = 2^-24, m = n + 16, in any order of summation
                                                             (Higham, Accuracy and Stability, section 3.1)
    the score's own rounding  <= (2^-24 + n 2^-53) |q| |d|
    numbers below 2^-126 may be replaced by 0, in the factors and in the products

So |score - quick| <= a |d| + b |s| + c. The norms are measured, not assumed. For a norm above 2^60
float32 might overflow, and the bound is infinite."""

from __future__ import annotations

import os
from typing import TypeVar

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64
from numpy import ndarray

from raytriever.errors import ConfigError, ModelError
from raytriever.models.precision import choose_precision
from raytriever.threads import in_threads

LARGEST_NORM = 2.0**60
UNIT = 2.0**-24  # of float32
_TINY = 2.0**-126
Values = TypeVar("Values", ndarray, torch.Tensor)
# Pairs that torch scores in less time than compiling takes, and those that it scores at a time.
FEW_PAIRS, _PIECE = 1 << 15, 512
# Covers the rounding errors of the bound itself.
_SLACK = 1 + 1e-6
_CHECKED_ROWS = 1 << 16


def pair_scores(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    query_rows: Int64[ndarray, " pairs"],
    document_rows: Int64[ndarray, " pairs"],
) -> Float32[ndarray, " pairs"]:
    """Return the scores of pairs of rows, bit for bit equal to those of a search.

    Raises:
        IndexError: a row is out of range.
    """
    for rows, vectors in ((query_rows, queries), (document_rows, documents)):
        if len(rows) and (rows.min() < 0 or rows.max() >= len(vectors)):
            raise IndexError(f"rows must be in [0, {len(vectors)})")
    scores = np.empty(len(query_rows), np.float32)
    if len(query_rows) <= FEW_PAIRS:
        for start in range(0, len(scores), _PIECE):
            piece = slice(start, start + _PIECE)
            left, right = (
                torch.from_numpy(vectors[rows[piece]].astype(np.float32, copy=False))
                for rows, vectors in ((query_rows, queries), (document_rows, documents))
            )
            scores[piece] = exact_scores(left, right[:, None])[:, 0].numpy()
        return scores
    in_threads(_score_pairs, len(scores), read_only(queries), read_only(documents), query_rows, document_rows, scores)
    return scores


def compile_scores() -> None:
    """Compile `pair_scores` for many pairs, or load its code, so that no search waits for it."""
    none, vectors = np.zeros(0, np.int64), read_only(np.zeros((0, 8), np.float32))
    _score_pairs(0, 0, vectors, vectors, none, none, np.zeros(0, np.float32))


def read_only(vectors: Float32[ndarray, "rows width"]) -> Float32[ndarray, "rows width"]:
    """Return a read-only view, like memory-mapped embeddings: numba compiles writable arrays separately."""
    view = np.ascontiguousarray(vectors, np.float32).view()
    view.flags.writeable = False
    return view


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _score_pairs(first, last, queries, documents, query_rows, document_rows, scores):  # type: ignore[no-untyped-def]
    sums = np.empty(queries.shape[1])
    for pair in range(first, last):
        query = queries[query_rows[pair]].astype(np.float64)
        scores[pair] = dot(query, documents[document_rows[pair]], sums)


@numba.njit(cache=True, error_model="numpy")
def dot(query, document, sums):  # type: ignore[no-untyped-def]
    """Return the score of a float64 copy of a query and a float32 document; `sums` is a buffer of width // 8."""
    width = len(query)
    h = width // 8
    for i in range(h):
        sums[i] = (
            (query[i] * np.float64(document[i]) + query[i + h] * np.float64(document[i + h]))
            + (query[i + 2 * h] * np.float64(document[i + 2 * h]) + query[i + 3 * h] * np.float64(document[i + 3 * h]))
        ) + (
            (query[i + 4 * h] * np.float64(document[i + 4 * h]) + query[i + 5 * h] * np.float64(document[i + 5 * h]))
            + (query[i + 6 * h] * np.float64(document[i + 6 * h]) + query[i + 7 * h] * np.float64(document[i + 7 * h]))
        )
    total = 0.0
    for i in range(8 * h, width):
        total += query[i] * np.float64(document[i])
    while h > 8:
        half = (h + 1) // 2
        for i in range(h - half):
            sums[i] = sums[i] + sums[i + half]
        h = half
    for i in range(h):
        total += sums[i]
    # Turn -0 into 0, so that both have equal bits.
    return np.float32(total) + np.float32(0)


def exact_scores(
    queries: Float32[torch.Tensor, "queries width"], documents: Float32[torch.Tensor, "queries some width"]
) -> Float32[torch.Tensor, "queries some"]:
    """Return the scores of each query and its own documents, by torch on any device, with the bits of `dot`.

    Each addition is an operation of its own on whole tensors, so no compiler changes their order.
    """
    products = queries.double()[:, None] * documents
    width = queries.shape[1]
    h = width // 8
    total = products.new_zeros(products.shape[:-1])
    for i in range(8 * h, width):
        total += products[..., i]
    p = [products[..., i * h : (i + 1) * h] for i in range(8)]
    sums = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
    while h > 8:
        half = (h + 1) // 2
        sums[..., : h - half] += sums[..., half:h]
        h = half
    for i in range(h):
        total += sums[..., i]
    return total.float() + 0


def quick_precision(device: torch.device) -> str:
    """Return `bf16` or `fp32`, the type that this device multiplies faster."""
    return choose_precision(None, device)


def check_finite(vectors: Float32[ndarray, "vectors width"], name: str, positions: ndarray | None = None) -> None:
    """Check that all vectors are finite, a block at a time. The positions count from 0 if None."""
    for start in range(0, len(vectors), _CHECKED_ROWS):
        block = vectors[start : start + _CHECKED_ROWS]
        where = np.arange(start, start + len(block)) if positions is None else positions[start : start + len(block)]
        refuse_not_finite(np.isfinite(block).all(axis=1), name, where)


def refuse_not_finite(finite: Bool[ndarray, " vectors"], name: str, positions: ndarray) -> None:
    """Check that all vectors are finite.

    Raises:
        ModelError: a vector is not finite; the error names the first one.
    """
    if not finite.all():
        raise ModelError(
            f"the embedding of {name} {positions[np.argmin(finite)]} is not finite",
            remedy="the encoder's weights are broken or overflow in bf16: train or load them again, and encode again",
        )


def error_terms(norms: Values, residuals: Values, width: int, unit: float = UNIT) -> tuple[Values, Values, Values]:
    """Return the terms a, b and c of the error bound, of the shape of the norms.

    Args:
        norms: Norms of the queries, in float64.
        residuals: norms of their rounding errors.
        unit: largest relative error of one addition of the matrix product.
    """
    terms = width + 16
    gamma = terms * unit / (1 - terms * unit)
    own = UNIT + width * 2.0**-53
    root = width**0.5
    a = residuals + gamma * 2 * (norms + residuals) + own * norms + 2 * _TINY * root
    b = norms + residuals
    c = _TINY * (2 * root * (norms + residuals) + 4 * width)
    return a * _SLACK, b * _SLACK, c * _SLACK


# The threads of OpenMP do not survive a fork: FAISS and torch would hang there.
_has_searched = _was_forked = False


def refuse_forked() -> None:
    """Check that this process may search; called before every search.

    Raises:
        ConfigError: this process was forked from a process that had searched.
    """
    global _has_searched
    if _was_forked:
        raise ConfigError(
            "this process was forked from a process that had searched, and lacks its threads",
            remedy='start processes that search with multiprocessing.get_context("spawn")',
        )
    _has_searched = True


def _record_fork() -> None:
    global _was_forked
    _was_forked = _has_searched


os.register_at_fork(after_in_child=_record_fork)
