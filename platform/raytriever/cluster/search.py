"""Exact search by actors, each with some shards of a store; the answer has the bytes of `retrieval.search_store`.

1. Queries go to the object store once. An actor reads its own shards, memory-mapped, and answers with the k best of
   them as keys of eight bytes.
2. Queries are asked in batches whose answer is `ANSWER_BYTES` an actor, two batches at a time, and an answer is merged
   as soon as it is there: the driver holds the ranking and one answer, the object store two of each actor.
3. An actor that dies is started again by Ray, wherever there is room, and asked again what it had not answered. Shards
   are files, so nothing else was lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from jaxtyping import Float32, Int64, UInt64
from numpy import ndarray
from ray.exceptions import RayActorError, RayTaskError

from raytriever.activity import activity
from raytriever.encoding.store import EmbeddingStore
from raytriever.errors import ConfigError, UserError
from raytriever.index.exact.search import best_keys
from raytriever.index.ranking import NONE, TieOrder, merge_keys
from raytriever.index.score import refuse_not_finite
from raytriever.search.exact import check_fits, searchable_blocks

ANSWER_BYTES = 64 * 2**20
BATCHES_AHEAD = 2
# How often an actor may die; Ray counts over its life.
RESTARTS = 3


@dataclass(frozen=True)
class SearchPool:
    """Who searches.

    Args:
        actors: at least 1; each holds every `actors`-th shard.
        cpus: cores of each, at least 1, and threads it computes with.
        gpus: of each; a fraction where several share one, 0 where it searches on its cores.
    """

    actors: int
    cpus: int = 1
    gpus: float = 0.0


@activity("searching the embeddings with actors")
def search_in_actors(
    store: EmbeddingStore,
    queries: Float32[ndarray, "queries width"],
    k: int,
    ties: Int64[ndarray, " documents"],
    exclude: Int64[ndarray, " queries"] | None = None,
    pool: SearchPool = SearchPool(2),
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """`retrieval.search_store.search_store`, inside a Ray session; every node sees the store under the same path.

    Raises:
        ModelError: the store, the queries and the ties do not fit each other, or an embedding is not finite.
        ConfigError: k is below 1, the actors do not fit this machine, or one dies again and again.
    """
    check_fits(store, queries, ties)
    # Here, where the positions are those of all queries.
    refuse_not_finite(np.isfinite(queries).all(axis=1), "query", np.arange(len(queries)))
    _check_room(pool)
    order = TieOrder.of(ties)
    k = min(k, len(ties))
    best = np.full((len(queries), max(k, 0)), NONE)
    remote = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus, max_restarts=RESTARTS, max_task_retries=RESTARTS)(
        _Searcher
    )
    shards = -(-len(store) // store.meta["shard_rows"])
    actors = [
        remote.remote(str(store.path), list(range(number, shards, pool.actors)), pool.cpus)
        for number in range(min(pool.actors, shards))
    ]
    try:
        for rows, keys in _answers(actors, queries, k, order, exclude):
            best[rows] = merge_keys([best[rows], keys], k)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise
    except RayActorError as error:
        raise ConfigError(
            f"a search actor died {RESTARTS + 1} times",
            str(store.path),
            "its shards or its queries may be too much for its memory: give more actors, or fewer queries at a time",
        ) from error
    finally:
        for actor in actors:
            ray.kill(actor)
    return order.read(best)


def _check_room(pool: SearchPool) -> None:
    """Ray would wait for what a cluster of one machine never gets; others may grow."""
    there = ray.cluster_resources()
    fits = int(there.get("GPU", 0) / pool.gpus if pool.gpus else there.get("CPU", 0) / pool.cpus)
    if pool.actors > fits and not os.environ.get("RAY_ADDRESS"):
        what = f"{pool.gpus:g} GPUs" if pool.gpus else f"{pool.cpus} CPUs"
        raise ConfigError(f"{pool.actors} search actors of {what} are more than fit", remedy=f"at most {fits} fit here")


def _answers(
    actors: list[Any], queries: ndarray, k: int, order: TieOrder, exclude: ndarray | None
) -> Iterator[tuple[slice, UInt64[ndarray, "batch k"]]]:
    """Which queries, and an actor's best documents for them, as they come."""
    held = ray.put(order)
    size = max(1, ANSWER_BYTES // (8 * max(1, k)))
    waiting: dict[Any, slice] = {}
    for start in range(0, len(queries), size):
        rows = slice(start, start + size)
        asked = ray.put((queries[rows], None if exclude is None else exclude[rows]))
        waiting |= {actor.search.remote(asked, k, held): rows for actor in actors}
        while len(waiting) > (BATCHES_AHEAD - 1) * len(actors):
            yield _next(waiting)
    while waiting:
        yield _next(waiting)


def _next(waiting: dict[Any, slice]) -> tuple[slice, ndarray]:
    [done], _ = ray.wait(list(waiting), num_returns=1)
    return waiting.pop(done), ray.get(done)


class _Searcher:
    """Searches its shards; opens the store when first asked, so that a mistake reaches who asked."""

    def __init__(self, path: str, shards: list[int], threads: int) -> None:
        torch.set_num_threads(threads)
        self._path, self._shards = Path(path), shards
        self._store: EmbeddingStore | None = None

    def search(self, asked: tuple[ndarray, ndarray | None], k: int, order: TieOrder) -> UInt64[ndarray, "batch k"]:
        """The k best of its documents for each query, as keys."""
        self._store = self._store or EmbeddingStore.open(self._path)
        queries, exclude = asked
        return best_keys(queries, searchable_blocks(self._store, self._shards), k, order, exclude)
