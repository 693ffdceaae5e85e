"""What every index is: something that is asked for the best documents of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.index.exact import top_k_of_parts
from raytriever.index.parts import Parts


class Index(Protocol):
    """Finds documents by dot product."""

    def search(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Scores and documents, best first, each document once; -inf and -1 where a query has fewer than k.

        An exact index gives `exact.top_k_of_parts`' bytes. Another may miss documents where k is less than half of
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

    parts: Callable[[], Parts]
    ties: Int64[ndarray, " documents"]

    def search(
        self,
        queries: Float32[ndarray, "queries width"],
        k: int,
        exclude: Int64[ndarray, " queries"] | None = None,
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """See `Index`."""
        return top_k_of_parts(queries, self.parts(), k, self.ties, exclude)
