"""Search the embeddings of a store: in this process, or some of its shards for whoever merges the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.errors import ModelError
from raytriever.index.exact import top_k_of_parts
from raytriever.retrieval.embeddings import EmbeddingStore
from raytriever.storage import disk_errors


@activity("searching the embeddings")
def search_store(
    store: EmbeddingStore,
    queries: Float32[ndarray, "queries width"],
    k: int,
    ties: Int64[ndarray, " documents"],
    exclude: Int64[ndarray, " queries"] | None = None,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """`index.exact.top_k_of_parts` over a store, one shard in memory at a time.

    Raises:
        ModelError: `ties` are of another number of documents, or queries of another width.
    """
    check_fits(store, queries, ties)
    return top_k_of_parts(queries, searchable_parts(store), k, ties, exclude)


def check_fits(store: EmbeddingStore, queries: ndarray, ties: ndarray) -> None:
    """Refuse queries and ties of something else.

    Raises:
        ModelError: as `search_store`.
    """
    if len(ties) != len(store):
        raise ModelError(
            f"holds embeddings of {len(store):,} documents, the data set has {len(ties):,}",
            str(store.path),
            "encode this data set",
        )
    if queries.shape[1] != store.width:
        raise ModelError(
            f"holds embeddings of width {store.width}, the queries have {queries.shape[1]}",
            str(store.path),
            "encode both with the same model",
        )


def searchable_parts(
    store: EmbeddingStore, shards: Sequence[int] | None = None
) -> Iterator[tuple[int, Float32[ndarray, "rows width"]]]:
    """Shards by number, all by default, as first row and embeddings; a shard is cut where a row has no embedding."""
    size = store.meta["shard_rows"]
    left_out = store.left_out
    for number in range(-(-len(store) // size)) if shards is None else shards:
        with disk_errors(store.path, reading=True):
            values = store.shard(number)
        first = number * size
        missing = left_out[(left_out >= first) & (left_out < first + len(values))] - first
        start = 0
        for end in [*missing.tolist(), len(values)]:
            if end > start:
                yield first + start, values[start:end]
            start = end + 1
