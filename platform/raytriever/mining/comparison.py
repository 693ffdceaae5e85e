"""Comparison of another system's best documents with those of BM25."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int64
from numpy import ndarray

from raytriever.mining.bm25 import Bm25Index


def compare_best(
    index: Bm25Index,
    queries: Sequence[str],
    best: Int64[ndarray, " queries"],
    left_out: Sequence[Int64[ndarray, " any"]] | None = None,
    form: Callable[[ndarray], ndarray] = lambda positions: positions,
) -> tuple[Float32[ndarray, "queries 3"], Bool[ndarray, " queries"]]:
    """Return what BM25 says of the best document that another system found for each query.

    Args:
        index: the corpus.
        queries: texts of the queries.
        best: position of the document that the other system found; -1 for none.
        left_out: documents that are not searched for each query, by their forms.
        form: returns the form of documents, by which copies are equal.

    Returns:
        Highest and second highest score of BM25 and its score for the other system's document, 0 for none; and whether
        both found the same document.
    """
    most = max((len(each) for each in left_out), default=0) if left_out else 0
    scores, found = index.search(queries, 2 + 2 * most)
    if left_out:
        is_out = np.stack([np.isin(row, each) for row, each in zip(form(found), left_out, strict=True)])
        order = np.argsort(is_out, axis=1, kind="stable")
        scores = np.take_along_axis(np.where(is_out, 0, scores), order, 1)
        found = np.take_along_axis(found, order, 1)
    bm25 = np.zeros((len(queries), 3), np.float32)
    bm25[:, : min(2, scores.shape[1])] = scores[:, :2]
    bm25[:, 2] = np.nan_to_num(index.scores_of(queries, best[:, None])[:, 0])
    return bm25, (found[:, 0] == best) & (bm25[:, 0] > 0)
