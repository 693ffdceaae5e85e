"""Flat search by FAISS, on GPUs where its build knows them, with the bytes of `exact.top_k`.

1. FAISS finds somewhat more documents than are wanted, by scores of its own arithmetic.
2. They are scored by `score.dot`, and ordered. If the last of them, by FAISS's score, surely stays below the k-th
   exact score (`arithmetic`), so does every document that FAISS left out, and the ranking is exact.
3. Queries for which that is not proved are searched again by `exact.top_k`.

The whole corpus is in memory, and once more on every GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import distributions

import faiss
import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.errors import ConfigError
from raytriever.index.exact.search import Parts, even_parts, top_k
from raytriever.index.fork_guard import refuse_forked
from raytriever.index.ranking import NONE, Order, keys_of, merge_keys
from raytriever.index.score import Factors, factors, pair_scores, query_bounds

SPARE = 64
# A GPU may multiply numbers cut to eleven bits.
_CUT_BY_GPU = 2.0**-10
# What FAISS's selection on GPUs can hold.
_MOST_ON_GPU = 2_048


class FaissFlatIndex:
    """An `index.Index` over all parts.

    Args:
        parts: position of the first row and embeddings, in any order; together all of `ties`' documents.
        width: of the embeddings.
        ties: from `exact.tie_order`.

    Raises:
        ConfigError: faiss-cpu and faiss-gpu are both installed.
        ModelError: an embedding is not finite.
    """

    def __init__(self, parts: Parts, width: int, ties: Int64[ndarray, " documents"]) -> None:
        check_installed(distribution.metadata["Name"] for distribution in distributions())
        refuse_forked()
        self._ties, self._order = ties, Order.of(ties)
        self._vectors = np.empty((len(ties), width), np.float32)
        self._norms = np.empty(len(ties))
        for positions, vectors in even_parts(parts, width, len(ties)):
            self._vectors[positions] = vectors
            self._norms[positions] = factors(vectors, "fp32", "document", positions).norms
        self._on_gpus = None
        if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0:
            index = faiss.IndexFlatIP(width)
            index.add(self._vectors)
            self._on_gpus = faiss.index_cpu_to_all_gpus(index)

    def search(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """See `index.Index`."""
        refuse_forked()
        wanted = min(k + SPARE, len(self._ties))
        if k < 1 or not wanted or (self._on_gpus and wanted > _MOST_ON_GPU):
            return top_k(queries, self._vectors, k, self._ties, exclude)
        sought = factors(queries, "fp32", "query", np.arange(len(queries)))
        quick, found = self._candidates(np.ascontiguousarray(queries, np.float32), wanted)
        of = np.repeat(np.arange(len(queries)), wanted)
        exact = pair_scores(queries, self._vectors, of, np.maximum(found, 0).ravel()).reshape(found.shape)
        keys = keys_of(exact, self._order.places[found])
        keys[found == (-1 if exclude is None else exclude[:, None])] = NONE
        scores, documents = self._order.read(merge_keys([keys], min(k, len(self._ties))))
        missing = (found < 0).any(axis=1)
        if wanted < len(self._ties):
            missing |= ~(self._most_left_out(sought, quick[:, -1]) < scores[:, -1])
        if missing.any():
            own = None if exclude is None else exclude[missing]
            scores[missing], documents[missing] = top_k(queries[missing], self._vectors, k, self._ties, own)
        return scores, documents

    def _most_left_out(self, sought: Factors, last: Float32[ndarray, " queries"]) -> Float64[ndarray, " queries"]:
        """What a document may score at most whose quick score is not above the last that was found."""
        cut, norm = _CUT_BY_GPU if self._on_gpus else 0.0, self._norms.max()
        with np.errstate(invalid="ignore"):  # infinite norms; nothing is below what is not a number
            bounds = query_bounds(sought._replace(residuals=sought.norms * cut), self._vectors.shape[1])
            return last + bounds.a * norm + bounds.b * norm * cut + bounds.c

    def _candidates(self, queries: ndarray, count: int) -> tuple[ndarray, ndarray]:
        if self._on_gpus:
            return self._on_gpus.search(queries, count)
        faiss.omp_set_num_threads(torch.get_num_threads())
        # As fast as an index, which would hold the corpus a second time.
        return faiss.knn(queries, self._vectors, count, metric=faiss.METRIC_INNER_PRODUCT)


def check_installed(names: Iterable[str]) -> None:
    """Refuse two builds of FAISS in one folder.

    Raises:
        ConfigError: both are among the installed distributions.
    """
    builds = sorted({name for name in names if name and name.lower().replace("_", "-").startswith("faiss-")})
    if len(builds) > 1:
        raise ConfigError(
            f"{' and '.join(builds)} are both installed, in the same folder, and break each other",
            remedy=f"pip uninstall {' '.join(builds)}, then install one of them (docs/how-to/install.md)",
        )
