"""Synthetic documents and queries with different distributions, like those of different modalities.

They are a positive control for measurements of the gap between queries and documents.

    document = unit(A u + noise e)
    query    = unit(A' w + m + B v)             u, e, w, v normal, drawn for each;  A, B, m the same for all

Documents fill a subspace of many dimensions (A). Queries use few of these (A', the first columns of A). They are
shifted by a common offset m and extend into a second subspace (B), in which documents have only noise. So queries have
a low rank and lie outside the cloud of documents, like texts among images. The documents nearest to a query agree in
few dimensions and differ in the others, while the documents nearest to a document are close to each other. The
unshifted queries have the distribution of the documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

_NOISE = 0.5  # length of a document's noise, relative to its component in the subspace


@dataclass(frozen=True)
class Control:
    """Normalized embeddings; `training` and `shifted` have one distribution, `documents` and `unshifted` the other."""

    documents: Float32[ndarray, "documents dim"]
    training: Float32[ndarray, "training dim"]
    shifted: Float32[ndarray, "queries dim"]
    unshifted: Float32[ndarray, "queries dim"]


def control(
    documents: int, queries: int, seed: int = 0, dim: int = 128, rank: int = 32, common: int = 8, own: int = 4
) -> Control:
    """Draw a control set.

    Args:
        documents: number of documents, and of training queries.
        queries: number of shifted queries, and of unshifted queries.
        seed: decides every number.
        dim: dimension of the embeddings, above rank + own.
        rank: dimensions of the documents' subspace.
        common: dimensions of this subspace that queries use, at most rank.
        own: dimensions of the queries' own subspace, at least 1.
    """
    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int) -> ndarray:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))

    basis = np.linalg.qr(rng.standard_normal((dim, rank + own + 1)))[0].astype(np.float32).T
    together, apart, offset = basis[:rank], basis[rank:-1], basis[-1]

    def base(rows: int) -> ndarray:
        return _unit(normal(rows, rank) @ together + np.float32(_NOISE) * normal(rows, dim))

    def shifted(rows: int) -> ndarray:
        return _unit(normal(rows, common) @ together[:common] + (normal(rows, own) @ apart + offset))

    return Control(base(documents), shifted(documents), shifted(queries), base(queries))


def _unit(vectors: ndarray) -> ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
