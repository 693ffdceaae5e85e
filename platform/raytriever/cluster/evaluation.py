"""Evaluate on a cluster: with actors that encode and search the corpora, or one model in a task with a GPU.

A search by actors, each with some shards of a store, has the results of `search.exact`, byte by byte.

1. Queries are put into the object store once. An actor reads its own shards, memory-mapped, and returns its k best
   documents as keys of eight bytes. If its GPU holds the shards, they are copied there once for all batches of queries.
2. Queries are sent in batches whose result has `RESULT_BYTES` for each actor, two batches at a time. A result is merged
   as soon as it arrives: the driver holds the ranking and one result, the object store two for each actor.
3. Ray restarts an actor that dies, on any node with free resources, and repeats the calls without a result. Shards are
   files, so nothing else is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray
from ray.exceptions import RayActorError, RayTaskError

from raytriever.activity import activity
from raytriever.cluster.encoding import (
    ActorPool,
    check_resources,
    choose_actor_pool,
    open_encoding_session,
    run_in_actors,
)
from raytriever.cluster.gauges import Gauges, export_metrics, with_encoding_gauges
from raytriever.cluster.placement import hide_unreserved_gpus
from raytriever.cluster.session import run_with_gpu
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.config import EncodeConfig
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.store import EmbeddingStore
from raytriever.errors import ConfigError, UserError
from raytriever.evaluation.evaluate import Evaluation
from raytriever.evaluation.systems import RetrievalBackend, evaluate_retriever
from raytriever.index.exact import Corpus
from raytriever.index.ranking import NONE, TieOrder, merge_keys
from raytriever.index.score import check_finite
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision, default_device
from raytriever.models.retriever import Retriever
from raytriever.search.exact import check_fits, searchable_blocks
from raytriever.tracking.spool import open_adjacent
from raytriever.tracking.tracker import Tracker
from raytriever.tracking.trackers import check_trackers

RESULT_BYTES = 64 * 2**20
BATCHES_AHEAD = 2
RESTARTS = 3  # of one actor, over its whole life


@activity("searching the embeddings with actors")
def search_in_actors(
    store: EmbeddingStore,
    queries: Float32[ndarray, "queries width"],
    k: int,
    ties: Int64[ndarray, " documents"],
    *,
    pool: ActorPool,
) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
    """Search as `search.exact.search_store` does, inside a Ray session. Every node must see the store under its path.

    Each of the `pool.most` actors holds as many shards.

    Raises:
        ModelError: the shapes of the store, the queries and the ties differ, or an embedding is not finite.
        ConfigError: k is below 1, the actors do not fit on this machine, or one dies more than `RESTARTS` times.
    """
    check_fits(store, queries, ties)
    # Before they are split into batches, so that the message names the position among all queries.
    check_finite(queries, "query")
    check_resources(pool.most, pool, "search actors", None)
    order = TieOrder.of(ties)
    k = min(k, len(ties))
    best = np.full((len(queries), max(k, 0)), NONE)
    remote = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus, max_restarts=RESTARTS, max_task_retries=RESTARTS)(
        _Searcher
    )
    shards = -(-len(store) // store.meta["shard_rows"])
    actors = [
        remote.remote(str(store.path), list(range(number, shards, pool.most)), pool.cpus)
        for number in range(min(pool.most, shards))
    ]
    try:
        for rows, keys in ranked_batches([actor.search.remote for actor in actors], queries, k, order):
            best[rows] = merge_keys([best[rows], keys], k)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise
    except RayActorError as error:
        raise ConfigError(
            f"a search actor died {RESTARTS + 1} times",
            str(store.path),
            "its shards or queries may exceed its memory: give more actors, or fewer queries at a time",
        ) from error
    finally:
        for actor in actors:
            ray.kill(actor)
    return order.read(best)


def ranked_batches(
    searches: Sequence[Callable[..., Any]], queries: ndarray, k: int, order: TieOrder
) -> Iterator[tuple[slice, Any]]:
    """Yield a slice of the queries and the result of one actor for them, in order of arrival.

    Each of `searches` calls one actor with references to a batch of queries, to k and to the tie order.
    """
    shared_order = ray.put(order)
    size = max(1, RESULT_BYTES // (8 * max(1, k)))
    waiting: dict[Any, slice] = {}
    for start in range(0, len(queries), size):
        rows = slice(start, start + size)
        batch = ray.put(queries[rows])
        waiting |= {search(batch, k, shared_order): rows for search in searches}
        while len(waiting) > (BATCHES_AHEAD - 1) * len(searches):
            yield _next(waiting)
    while waiting:
        yield _next(waiting)


def _next(waiting: dict[Any, slice]) -> tuple[slice, ndarray]:
    [done], _ = ray.wait(list(waiting), num_returns=1)
    return waiting.pop(done), ray.get(done)


class _Searcher:
    """Searches its shards. It opens the store at the first call, so that an error reaches the caller."""

    def __init__(self, path: str, shards: list[int], threads: int) -> None:
        hide_unreserved_gpus()
        torch.set_num_threads(threads)
        self._path, self._shards = Path(path), shards
        self._corpus: Corpus | None = None

    def search(self, queries: Float32[ndarray, "batch width"], k: int, order: TieOrder) -> Int64[ndarray, "batch k"]:
        """Return the k best of its documents for each query, as keys."""
        self._corpus = self._corpus or self._open(order)
        return self._corpus.keys(queries, k)

    def _open(self, order: TieOrder) -> Corpus:
        store = EmbeddingStore.open(self._path)
        most = min(len(store), len(self._shards) * store.meta["shard_rows"])
        return Corpus(lambda: searchable_blocks(store, self._shards), order, documents=most)


Evaluated = TypeVar("Evaluated")


def evaluate_in_session(
    run: Callable[..., Evaluated],
    config: EncodeConfig,
    output: Path,
    fresh: bool,
    trackers: Sequence[str],
    log: Callable[[str], None],
) -> Evaluated:
    """Run an evaluation or one on MTEB in this process, or in the actors that `config` requests, with the same results.

    Embeddings are stored in the cache, which every node must see under the same path. `run` is `run_evaluation` or
    `run_mteb` with their job. Without trackers the evaluation is not tracked.
    """
    check_trackers(trackers)

    def tracker() -> Tracker:
        return open_adjacent(trackers, output, log) if trackers else Tracker()

    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        backend = pool_backend(pool, Gauges(output.name)) if pool else None
        gauges: list[Gauges] = []  # they exist as long as this list

        def on_result(model: str, dataset: str, metrics: Mapping[str, float]) -> None:
            gauges.append(export_metrics(output.name, model, dataset, metrics))

        return run(output, fresh, tracker, log, backend=backend, on_result=on_result)


def pool_backend(pool: ActorPool, gauges: Gauges) -> RetrievalBackend:
    """Return functions that encode and search in actors, as many as the cluster has resources for."""
    searchers = replace(pool, most=max(pool.fewest, min(pool.most, pool.fits)))
    return RetrievalBackend(
        with_encoding_gauges(run_in_actors(pool), gauges), partial(search_in_actors, pool=searchers)
    )


def evaluate_model(
    dataset: RetrievalDataset, split: str, model: ModelConfig, precision: str | None, retriever: Retriever | None = None
) -> Evaluation:
    """Evaluate a model on one split, in a Ray task with a GPU if the cluster has GPUs, otherwise in this process.

    The cluster must see the data set and the model under the same paths. `retriever` was loaded for encoding with
    `model` on the CPU; an evaluation on the CPU of this process uses it.
    """
    location = str(dataset.location)
    return run_with_gpu(
        remote=partial(_evaluate, location, split, model, precision),
        here=partial(_evaluate, dataset, split, model, precision, retriever),
    )


def _evaluate(
    source: RetrievalDataset | str,
    split: str,
    model: ModelConfig,
    precision: str | None,
    retriever: Retriever | None = None,
) -> Evaluation:
    dataset = open_dataset(source, [split]) if isinstance(source, str) else source
    device = default_device()
    if retriever is None or device.type == "cuda":
        retriever = load_for_encoding(model, choose_precision(precision, device), device)
    return evaluate_retriever(dataset, split, model, retriever)
