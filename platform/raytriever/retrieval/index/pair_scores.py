"""Scores of query-document pairs: the exact dot product, rounded to float64 and then to float32.

The product of two float32 numbers is exact in float64, but a sum of products depends on the order of its additions. In
any order its error is at most (n + 2) 2^-53 |q| |d| for vectors q and d of n components (Higham, Accuracy and
Stability, section 3.1). If a sum plus or minus this error rounds to the same float32 number, the order does not matter.
The other sums, about two of 100,000, are computed exactly. So a score has the same bits in every block, shard, thread,
device and library."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from numpy import ndarray
from torch import Tensor

from raytriever.core.errors import ConfigError, ModelError
from raytriever.core.numba_threads import in_threads

_CHECKED_ROWS, _GATHERED_ROWS = 1 << 16, 1 << 12
# Number of components that a CPU multiplies at once: few enough to stay in its cache.
_CPU_PIECE = 1 << 15
# torch warns that memory-mapped embeddings are read-only. Nothing here writes to them.
warnings.filterwarnings("ignore", "The given NumPy array is not writable")


def pair_scores(
    queries: Float32[ndarray, "queries dim"],
    documents: Float32[ndarray, "documents dim"],
    query_rows: Int64[ndarray, " pairs"],
    document_rows: Int64[ndarray, " pairs"],
) -> Float32[ndarray, " pairs"]:
    """Return the scores of pairs of rows, with the same bits as in a search. The row numbers must be in range."""
    for rows, vectors in ((query_rows, queries), (document_rows, documents)):
        if len(rows) and (rows.min() < 0 or rows.max() >= len(vectors)):
            raise IndexError(f"rows must be in [0, {len(vectors)})")
    left, right = (torch.from_numpy(as_float32(values)) for values in (queries, documents))
    of, to = torch.from_numpy(query_rows), torch.from_numpy(document_rows)
    lengths = norms(left)[of] * torch.cat([norms(right[rows]) for rows in to.split(_GATHERED_ROWS)])
    return scores_of_pairs(left, right, of, to, lengths).numpy()


def as_float32(vectors: ndarray) -> Float32[ndarray, "rows dim"]:
    """Return contiguous float32 embeddings; copy them only if necessary."""
    return np.ascontiguousarray(vectors, np.float32)


def norms(vectors: Float32[Tensor, "rows dim"]) -> Float64[Tensor, " rows"]:
    """Return upper bounds of the norms. If a vector is not finite, neither is its bound.

    The bounds cover the error of a sum of squares in float32: less than 1 %, and components below 2^-63."""
    quick = torch.linalg.vector_norm(vectors, dim=1).double() * 1.01 + 2.0**-50
    return quick if bool(quick.isfinite().all()) else torch.linalg.vector_norm(vectors.double(), dim=1) * 1.01


def scores_of_pairs(
    queries: Float32[Tensor, "queries dim"],
    documents: Float32[Tensor, "documents dim"],
    of: Int64[Tensor, " pairs"],
    to: Int64[Tensor, " pairs"],
    lengths: Float64[Tensor, " pairs"],
    gpu_bytes: int = 0,
) -> Float32[Tensor, " pairs"]:
    """Return the scores of pairs of rows on any device, with temporary tensors of at most `gpu_bytes` on a GPU.
    `lengths` has, for each pair, an upper bound of the product of the two norms."""
    sums = torch.empty_like(lengths)
    if queries.device.type == "cpu":
        # Use NumPy in our own threads: torch would synchronize its threads after each of these small operations.
        in_threads(_sum_pairs, len(of), *(values.numpy() for values in (queries, documents, of, to, sums)))
    else:
        step = max(1, gpu_bytes // (32 * max(1, queries.shape[1])))
        for start in range(0, len(of), step):
            pairs = slice(start, start + step)
            sums[pairs] = (queries[of[pairs]].double() * documents[to[pairs]]).sum(1)
    return round_sums(sums, lengths, queries, documents, lambda chosen: (of[chosen], to[chosen]))


def _sum_pairs(first: int, last: int, queries, documents, of, to, sums) -> None:  # type: ignore[no-untyped-def]
    step = max(1, _CPU_PIECE // max(1, queries.shape[1]))
    for start in range(first, last, step):
        pairs = slice(start, min(start + step, last))
        left, right = queries.take(of[pairs], 0), documents.take(to[pairs], 0)
        np.vecdot(left, right, dtype=np.float64, out=sums[pairs])


def round_sums(
    sums: Float64[Tensor, "*shape"],
    lengths: Float64[Tensor, "*shape"],
    queries: Float32[Tensor, "queries dim"],
    documents: Float32[Tensor, "documents dim"],
    rows: Callable[[Bool[Tensor, "*shape"]], tuple[Tensor, ...]],
) -> Float32[Tensor, "*shape"]:
    """Return the scores of pairs.

    Args:
        sums: dot products of the pairs, summed in float64 in any order.
        lengths: for each pair, an upper bound of the product of the two norms.
        rows: function that returns the rows of the queries and documents of selected pairs.
    """
    errors = lengths * ((queries.shape[1] + 2) * 2.0**-53)
    is_unsure = ((sums - errors).float() != (sums + errors).float()) & sums.isfinite()
    if bool(is_unsure.any()):
        of, to = rows(is_unsure)
        exact: list[float] = []
        for some, others in zip(of.split(_GATHERED_ROWS), to.split(_GATHERED_ROWS), strict=True):
            products = queries[some].double() * documents[others]
            exact += [math.fsum(row.tolist()) for row in products.cpu().numpy()]
        sums = sums.masked_scatter(is_unsure, sums.new_tensor(exact))
    return sums.float() + 0  # -0 becomes 0


def check_finite(vectors: Float32[ndarray, "vectors dim"], name: str, positions: ndarray | None = None) -> None:
    """Raise `ModelError` unless all vectors are finite. The message names a vector by `positions`."""
    for start in range(0, len(vectors), _CHECKED_ROWS):
        finite = np.isfinite(vectors[start : start + _CHECKED_ROWS]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            remedy = "encode with fp32; if this fails too, the encoder's weights are broken: load or train them again"
            what = f"the embedding of {name} {row if positions is None else positions[row]} is not finite"
            raise ModelError(what, remedy=remedy)


# OpenMP's threads do not survive a fork, so FAISS and torch would hang in the new process.
_has_searched = _was_forked = False


def refuse_forked() -> None:
    """Raise `ConfigError` if this process was forked after a search. Every search first calls this function."""
    global _has_searched
    if _was_forked:
        what = "this process was forked after a search, so its worker threads are missing"
        raise ConfigError(what, remedy='start processes that search with multiprocessing.get_context("spawn")')
    _has_searched = True


def _record_fork() -> None:
    global _was_forked
    _was_forked = _has_searched


os.register_at_fork(after_in_child=_record_fork)
