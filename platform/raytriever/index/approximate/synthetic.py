"""Synthetic documents and queries whose distributions differ as they do between modes: a positive control.

    document = unit(A u + noise e)
    query    = unit(A' w + shift (m + B v))     u, e, w, v normal, redrawn for each;  A, B, m the same for all

Documents fill a subspace of many dimensions (A). Queries keep to few of them (A', the first columns of A), and lie
beside the documents: by an offset m that all share, and within a second subspace (B) of which documents know only
noise. So queries are of low rank and off the documents' cloud, as texts are among images: the documents nearest to a
query agree in few dimensions and are spread over the others, where those nearest to a document are close to each other.
The unshifted queries are drawn exactly as documents are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy import ndarray


@dataclass(frozen=True)
class Control:
    """Normalised embeddings; `training` and `shifted` are drawn alike, `documents` and `unshifted` too."""

    documents: Float32[ndarray, "documents width"]
    training: Float32[ndarray, "training width"]
    shifted: Float32[ndarray, "queries width"]
    unshifted: Float32[ndarray, "queries width"]


def control(
    documents: int,
    queries: int,
    seed: int = 0,
    width: int = 128,
    rank: int = 32,
    common: int = 8,
    own: int = 4,
    noise: float = 0.5,
    shift: float = 1.0,
) -> Control:
    """Draw a control set.

    Args:
        documents: how many; as many training queries.
        queries: how many of either set that is searched for.
        seed: decides every number.
        width: of the embeddings, above rank + own.
        rank: dimensions of the documents' subspace.
        common: how many of those queries have, at most rank.
        own: dimensions of the queries' own subspace, at least 1.
        noise: length of a document's noise, where its part in the subspace is of length about 1.
        shift: length of the offset and of a query's part in its own subspace, where its common part is about 1.
    """
    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int) -> ndarray:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))

    basis = np.linalg.qr(rng.standard_normal((width, rank + own + 1)))[0].astype(np.float32).T
    together, apart, offset = basis[:rank], basis[rank:-1], basis[-1]

    def base(rows: int) -> ndarray:
        return _unit(normal(rows, rank) @ together + np.float32(noise) * normal(rows, width))

    def shifted(rows: int) -> ndarray:
        return _unit(
            normal(rows, common) @ together[:common] + np.float32(shift) * (normal(rows, own) @ apart + offset)
        )

    return Control(base(documents), shifted(documents), shifted(queries), base(queries))


def _unit(vectors: ndarray) -> ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
