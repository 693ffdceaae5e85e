"""Pool of actors that encode the shards of an embedding store, and search them.

1. Only shard numbers, queries and result keys are sent. Actors read tokens and embeddings from disk and commit
   embeddings to disk. So the object store stays nearly empty for a corpus of any size.
2. Ray Data scales the encoding actors between a minimum and a maximum. If an actor or node dies, another actor gets its
   shard. Committed shards are not repeated. An uncommitted shard is encoded again with the same batches, so its bytes
   do not depend on failures. A shard may kill its actors, and Ray would retry forever, so attempts are counted.
3. Each search actor has some shards, which stay on its GPU if they fit. It returns its k best documents as keys of
   eight bytes. Queries are sent in batches whose result takes `RESULT_BYTES` for each actor, two batches at a time. A
   result is merged as soon as it arrives. The final result has the same bytes as that of `exact_search`.
4. If a search actor dies, Ray restarts it on any node with free resources, and repeats its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray
from ray.data import ActorPoolStrategy
from ray.exceptions import RayActorError

from raytriever.cluster.gpus_and_placement import actor_options, count_nodes
from raytriever.cluster.ingest import deserialize_error, quiet_data_context, serialize_error
from raytriever.cluster.ray_session import DriverContext, result_or_error
from raytriever.core.errors import ConfigError, UserError
from raytriever.core.machine import usable_cores
from raytriever.core.progress import activity
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder
from raytriever.retrieval.index.exact_top_k import Corpus
from raytriever.retrieval.index.pair_scores import check_finite
from raytriever.retrieval.index.rank_keys import NONE, TieOrder, merge_keys

# Tasks per actor: one runs and one waits, so that an actor is not idle while Ray Data processes a result.
_TASKS_PER_ACTOR = 2
# Shards per task. If a task has several, a shard is encoded while the next is read and the previous is written.
_SHARDS_PER_TASK = 4
RESULT_BYTES = 64 * 2**20
BATCHES_AHEAD = 2
RESTARTS = 3  # maximum number of restarts of a search actor
START_SECONDS = 600.0  # time in which the first search actor must start; enough for a cluster that grows on demand
GRACE_SECONDS = 30.0  # additional time in which the other search actors must start
NICENESS = 10  # nice value of processes that reserve no CPUs, so that training on the same cores has priority


@dataclass(frozen=True)
class ActorPool:
    """Description of a pool of actors. The description can be sent to other processes.

    Every node must see the stores, the data sets and the models under the same paths."""

    # `fewest`, `most`: minimum and maximum number of actors; Ray Data adds actors if there is work and free resources.
    fewest: int
    most: int
    cpus: int = 1  # cores and threads of each actor; 0 to share the cores with other processes, at a lower priority
    gpus: float = 0.0  # GPUs of each actor; a fraction if several actors share a GPU, 0 to compute on the CPU

    @property
    def fits(self) -> int:
        """Number of actors of this pool for which the cluster has resources."""
        resources = ray.cluster_resources()
        return int(resources.get("GPU", 0) / self.gpus if self.gpus else resources.get("CPU", 1) / self.cpus)

    def check(self, actors: int, kind: str, where: str | None) -> None:
        """Raise `ConfigError` if the actors do not fit on this machine. A cluster at `RAY_ADDRESS` may grow."""
        if self.cpus and actors > (fits := self.fits) and not os.environ.get("RAY_ADDRESS"):
            size = f"{self.gpus:g} GPUs each" if self.gpus else f"{self.cpus} CPUs each"
            raise ConfigError(f"{actors} {kind} with {size} do not fit on this host", where, f"use at most {fits}")

    @property
    def options(self) -> dict[str, Any]:
        """Ray's options for each actor."""
        return actor_options(self.cpus, self.gpus)

    def encode(self, encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        """Encode shards; see `encoding.embed_corpus.Runner`.

        Raises:
            UserError: a shard cannot be encoded.
        """
        if not missing:
            return
        # `replace` copies the fields only, not the cached encoder and data set of this process.
        sent = replace(encoder, on_progress=None)
        # Make tasks so small that every actor gets at least two, if possible. Then few actors are idle at the end.
        size = min(_SHARDS_PER_TASK, max(1, len(missing) // (_TASKS_PER_ACTOR * self.most)))
        tasks = -(-len(missing) // size)
        with quiet_data_context():
            numbers = ray.data.from_items([{"shard": number} for number in missing], override_num_blocks=tasks)
            shards = numbers.map_batches(
                PoolActor,
                fn_constructor_args=(DriverContext(), self, sent),
                compute=ActorPoolStrategy(
                    min_size=min(self.fewest, tasks),
                    max_size=min(self.most, tasks),
                    max_tasks_in_flight_per_actor=_TASKS_PER_ACTOR,
                ),
                batch_size=size,  # Ray Data requires it for actors with GPUs
                **self.options,
            )
            for row in shards.iter_rows():
                if row["error"]:
                    raise deserialize_error(row["error"])
                advance(encoder.texts_to_encode(row["shard"]))

    @activity("searching the embeddings with actors")
    def search(
        self,
        store: EmbeddingStore,
        queries: Float32[ndarray, "queries dim"],
        k: int,
        ties: Int64[ndarray, " documents"],
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Search with `most` actors. The results are those of `exact_search.search_store`.

        Raises:
            ModelError: the shapes of the store, the queries and the ties differ, or an embedding has NaN or infinity.
            ConfigError: k is below 1, the actors do not fit on this machine, no actor starts, or an actor dies more
                than `RESTARTS` times.
        """
        order = TieOrder.of(ties)
        return order.read(PooledCorpus(self, store, order).keys(queries, k))


@dataclass(frozen=True)
class PooledCorpus:
    """Embedding store that the actors of a pool search; see `exact_top_k.Corpus`.

    Ray ends the actors when this object is deleted."""

    pool: ActorPool
    store: EmbeddingStore
    order: TieOrder

    def keys(self, queries: Float32[ndarray, "queries dim"], k: int) -> Int64[ndarray, "queries k"]:
        """Return the k best documents of each query as keys; see `ActorPool.search`."""
        store = self.store
        # Check all queries before they are split into batches, so that an error has the position among all queries.
        check_finite(queries, "query")
        k = min(k, len(store))
        best = np.full((len(queries), max(k, 0)), NONE)
        try:
            parts = [range(number, store.plan.shards, len(self._actors)) for number in range(len(self._actors))]
            for rows, keys in _ranked_batches(self._actors, parts, store.path, queries, k, self.order):
                if isinstance(keys, UserError):
                    raise keys
                best[rows] = merge_keys([best[rows], keys], k)
        except RayActorError as error:
            remedy = "shards or queries may exceed the actor's memory: give more actors, or fewer queries at a time"
            raise ConfigError(f"a search actor died {RESTARTS + 1} times", str(store.path), remedy) from error
        return best

    @cached_property
    def _actors(self) -> list[Any]:
        """Actors that have started. An actor gets the same shards in every call, so the shards stay on its GPU."""
        self.pool.check(self.pool.most, "search actors", None)
        remote = ray.remote(**self.pool.options, max_restarts=RESTARTS, max_task_retries=RESTARTS)(PoolActor)
        count = max(1, min(self.pool.most, self.store.plan.shards))
        return _started([remote.remote(DriverContext(), self.pool) for _ in range(count)])


def _started(actors: list[Any]) -> list[Any]:
    """Wait for actors to start, and return those that have started in time. The other actors may lack resources."""
    starting = {actor.ready.remote(): actor for actor in actors}
    started, others = ray.wait([*starting], timeout=START_SECONDS)
    if not started:
        remedy = "free some of its resources; `ray status` shows what uses them"
        raise ConfigError(f"no search actor started within {START_SECONDS:.0f} s", "the Ray cluster", remedy)
    if others:
        started += ray.wait(others, num_returns=len(others), timeout=GRACE_SECONDS)[0]
    return [starting[reference] for reference in started]


def _ranked_batches(
    actors: Sequence[Any], parts: Sequence[range], path: Path, queries: ndarray, k: int, order: TieOrder
) -> Iterator[tuple[slice, Any]]:
    """Yield the results of the actors in order of arrival: a slice of the queries, and one actor's result for it."""
    shared_order = ray.put(order)
    size = max(1, RESULT_BYTES // (8 * max(1, k)))
    waiting: dict[Any, slice] = {}
    for start in range(0, len(queries), size):
        rows = slice(start, start + size)
        batch = ray.put(queries[rows])
        calls = zip(actors, parts, strict=True)
        waiting |= {actor.search.remote(str(path), part, batch, k, shared_order): rows for actor, part in calls}
        while len(waiting) > (BATCHES_AHEAD - 1) * len(actors):
            yield _next(waiting)
    while waiting:
        yield _next(waiting)


def _next(waiting: dict[Any, slice]) -> tuple[slice, Any]:
    [done], _ = ray.wait(list(waiting), num_returns=1)
    return waiting.pop(done), ray.get(done)


class PoolActor:
    """Actor of a pool. User errors are returned as values, because Ray would wrap exceptions."""

    def __init__(self, driver: DriverContext, pool: ActorPool, encoder: ShardEncoder | None = None) -> None:
        driver.enter()
        if not pool.cpus:
            lower_priority()
        torch.set_num_threads(pool.cpus or max(1, usable_cores() * min(count_nodes(), pool.most) // pool.most))
        self._encoder = encoder
        self._corpus: Corpus | None = None

    def ready(self) -> None:
        """Return as soon as the actor has started."""

    def __call__(self, batch: dict[str, ndarray]) -> Iterator[dict[str, ndarray]]:
        """Encode shards, for Ray Data."""
        numbers = [int(number) for number in batch["shard"]]
        assert self._encoder is not None
        try:
            for number in self._encoder.encode(numbers):
                yield {"shard": np.array([number]), "error": np.array([""])}
        except UserError as error:
            yield {"shard": np.array(numbers[:1]), "error": np.array([serialize_error(error)])}

    def search(
        self, path: str, shards: Sequence[int], queries: Float32[ndarray, "batch dim"], k: int, order: TieOrder
    ) -> Int64[ndarray, "batch k"] | UserError:
        """Return the k best documents of each query in the shards, as keys. All calls pass the same shards."""
        return result_or_error(lambda: self._open(path, shards, order).keys(queries, k))

    def _open(self, path: str, shards: Sequence[int], order: TieOrder) -> Corpus:
        if self._corpus is None:
            store = EmbeddingStore.open(path)
            most = min(len(store), len(shards) * store.plan.shard_rows)
            self._corpus = Corpus(lambda: store.blocks(shards), order, documents=most)
        return self._corpus


def lower_priority() -> None:
    """Lower the priority of this process below that of other processes on the same cores."""
    with suppress(OSError):
        os.nice(NICENESS)
