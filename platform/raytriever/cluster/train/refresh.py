"""Refresh of hard negatives on the cluster: a miner actor with encoder actors of its own.

Weights go through the object store, once per node. A round writes embeddings shard by shard, searches, filters and
commits its table to the run directory. Encoders that have GPUs search too, each a part of the corpus; without GPUs the
miner searches. Encoders are kept between rounds. An encoder that dies restarts, and any encoder repeats its shard; a
miner that dies restarts, possibly on another node, and uses the committed shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from jaxtyping import Float32, Int64
from numpy import ndarray
from ray.exceptions import RayActorError

from raytriever.cluster.evaluation import RESTARTS, ranked_batches
from raytriever.cluster.placement import SPREAD, count_gpus, spare_gpus
from raytriever.cluster.session import DriverContext, result_or_error
from raytriever.cluster.train.mining_round import EMBEDDINGS, MiningRounds, SnapshotLoader
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.encoding.shards import ShardEncoder
from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import UserError, flag_of
from raytriever.index.exact import Corpus
from raytriever.index.ranking import NONE, TieOrder, merge_keys
from raytriever.mining.finders import DocumentEmbeddings, SearchedCorpus, open_here
from raytriever.store.commit import remove
from raytriever.store.disk import disk_errors
from raytriever.training.config import SYNC
from raytriever.training.parallel.model_state import Snapshot


@dataclass(frozen=True)
class EncodingTask:
    """Task of the encoders: one store, encoded with one snapshot of the weights."""

    number: int
    store: StoreWriter
    load: SnapshotLoader
    dataset: str


@ray.remote(num_cpus=0, max_restarts=-1)
class EncoderActor:
    """Actor that encodes shards, one at a time."""

    def __init__(self, driver: DriverContext) -> None:
        driver.enter()
        self._task = -1
        self._encode: ShardEncoder | None = None
        self._corpus: Corpus | None = None

    @ray.method(max_task_retries=-1)
    def ready(self) -> None:
        """Return as soon as the actor has started or restarted."""

    def encode(self, task: EncodingTask, snapshot: Snapshot, shard: int) -> UserError | None:
        """Encode and commit one shard, or return a user error."""
        if self._encode is None or self._task != task.number:
            self._corpus = None  # frees memory of the GPU
            self._encode = ShardEncoder(task.store, partial(task.load, snapshot), task.dataset)
            self._task = task.number
        return result_or_error(partial(self._encode, shard))

    @ray.method(max_task_retries=RESTARTS)
    def search(
        self, part: CorpusPart, queries: Float32[ndarray, "batch width"], k: int, order: TieOrder
    ) -> Int64[ndarray, "batch k"] | UserError:
        """Return the k best documents of a part of a corpus for each query, as keys, or a user error."""
        if self._corpus is None or self._task != part.number:
            self._encode = None
            self._corpus, self._task = Corpus(part.blocks, order, documents=part.documents), part.number
        return result_or_error(partial(self._corpus.keys, queries, k))


@dataclass(frozen=True)
class CorpusPart:
    """Part of a corpus that one encoder searches.

    Args:
        number: number of the corpus, among the tasks of the pool.
        documents: largest number of documents in the part.
        blocks: returns first rows and embeddings.
    """

    number: int
    documents: int
    blocks: Callable[[], Iterator[tuple[int, ndarray]]]


def _blocks_of_store(path: Path, shards: Sequence[int]) -> Iterator[tuple[int, ndarray]]:
    store = EmbeddingStore.open(path)
    for number in shards:
        with disk_errors(path, reading=True):
            yield number * store.meta["shard_rows"], store.shard(number)


def _blocks_of_array(first: int, rows: Any) -> Iterator[tuple[int, ndarray]]:
    yield first, ray.get(rows)


@dataclass(frozen=True)
class PoolCorpus:
    """Corpus that several encoders search, each a part of it; see `mining.finders.SearchedCorpus`.

    Args:
        searches: calls the `search` of each encoder with its part.
    """

    searches: Sequence[Callable[..., Any]]
    order: TieOrder

    def keys(self, queries: Float32[ndarray, "queries width"], k: int) -> Int64[ndarray, "queries k"]:
        """Return the k best documents of each query as keys.

        Raises:
            UserError: the error of an encoder, or an encoder died too often.
        """
        k = min(k, len(self.order.ranks))
        best = np.full((len(queries), k), NONE)
        try:
            for rows, keys in ranked_batches(self.searches, queries, k, self.order):
                if isinstance(keys, UserError):
                    raise keys
                best[rows] = merge_keys([best[rows], keys], k)
        except RayActorError as error:
            remedy = "its part of the corpus may exceed its memory"
            raise UserError(f"an encoder died {RESTARTS + 1} times while it searched", "a refresh", remedy) from error
        return best

    def is_copied_again(self, width: int) -> bool:
        """Return True: a call of the encoders waits for the slowest one."""
        return True


START_SECONDS = 600.0  # in which one encoder at least must start; enough for a cluster that grows on demand


class EncoderPool:
    """Pool of encoders that grows with the number of shards, and shrinks after a round.

    Each encoder has a GPU of its own, and there are no more of them than spare GPUs. Without a spare GPU all encode on
    CPUs. Only encoders that have started get shards, so one that waits for its resources delays nothing.

    Args:
        fewest, most: number of encoders between rounds, and at most.
        spare: returns the GPUs that are free for more encoders, given the number of those that the pool holds.
    """

    def __init__(self, fewest: int, most: int, spare: Callable[[int], int]) -> None:
        self._fewest, self._most, self._spare = fewest, most, spare
        self._actors: list[Any] = []
        self._gpus = 0.0  # of each encoder
        self._tasks = 0

    def encode(self, snapshot: Any, store: StoreWriter, load: SnapshotLoader, dataset: str, missing: list[int]) -> None:
        """Encode shards on the encoders, and wait for them.

        Raises:
            UserError: a shard cannot be encoded, or no encoder starts within `START_SECONDS`.
        """
        self._tasks += 1
        task = EncodingTask(self._tasks, store, load, dataset)
        self._grow(min(self._most, len(missing)))
        remaining = list(reversed(missing))
        idle: list[Any] = []
        starting = {actor.ready.remote(): actor for actor in self._actors}
        working: dict[Any, tuple[Any, int]] = {}
        while remaining or working:
            while idle and remaining:
                actor, shard = idle.pop(0), remaining.pop()
                working[actor.encode.remote(task, snapshot, shard)] = actor, shard
            changed, _ = ray.wait([*working, *starting], timeout=None if working else START_SECONDS)
            if not changed:
                raise self._none_started()
            [reference] = changed
            if reference in starting:
                ray.get(reference)
                idle.append(starting.pop(reference))
                continue
            actor, shard = working.pop(reference)
            try:
                error = ray.get(reference)
            except RayActorError:  # any encoder may take the shard, because the dead one may find no place to restart
                remaining.append(shard)
                starting[actor.ready.remote()] = actor
                continue
            if error is not None:
                raise error
            idle.append(actor)

    def open_corpus(self, documents: DocumentEmbeddings, order: TieOrder) -> SearchedCorpus:
        """Return a corpus that the encoders search on their GPUs; without GPUs this process searches it.

        Raises:
            UserError: no encoder starts within `START_SECONDS`.
        """
        self._grow(self._most)
        if not self._gpus:
            return open_here(documents, order)
        starting = {actor.ready.remote(): actor for actor in self._actors}
        started, _ = ray.wait([*starting], num_returns=len(starting), timeout=1.0)
        started = started or ray.wait([*starting], timeout=START_SECONDS)[0]
        if not started:
            raise self._none_started()
        actors, self._tasks = [starting[reference] for reference in started], self._tasks + 1
        searches = []
        for index, actor in enumerate(actors):
            if isinstance(documents, EmbeddingStore):
                size = documents.meta["shard_rows"]
                shards = range(index, -(-len(documents) // size), len(actors))
                most = min(len(documents), len(shards) * size)
                part = CorpusPart(self._tasks, most, partial(_blocks_of_store, documents.path, shards))
            else:
                rows = range(index * len(documents) // len(actors), (index + 1) * len(documents) // len(actors))
                array = ray.put(documents.array[rows.start : rows.stop])
                part = CorpusPart(self._tasks, len(rows), partial(_blocks_of_array, rows.start, array))
            if part.documents:
                searches.append(partial(actor.search.remote, part))
        return PoolCorpus(searches, order)

    def _none_started(self) -> UserError:
        self._end_all_but(0)
        remedy = "`ray status` shows what uses its resources"
        return UserError(f"no encoder started within {START_SECONDS:.0f} s", "the Ray cluster", remedy)

    def shrink(self) -> None:
        """End all encoders but the fewest."""
        self._end_all_but(self._fewest)

    def _end_all_but(self, size: int) -> None:
        while len(self._actors) > size:
            ray.kill(self._actors.pop())

    def _grow(self, size: int) -> None:
        """Start encoders until there are `size`, or as many as GPUs allow."""
        spare = self._spare(len(self._actors) if self._gpus else 0)
        if spare and not self._gpus:  # those on CPUs would slow the others down
            self._end_all_but(0)
        if not self._actors:
            self._gpus = float(spare > 0)
        if self._gpus:
            size = min(size, len(self._actors) + spare)
        encoder = EncoderActor.options(num_gpus=self._gpus, **SPREAD)  # type: ignore[attr-defined]
        while len(self._actors) < size:
            self._actors.append(encoder.remote(DriverContext()))


NEGATIVES, MODEL = "negatives", "model"
TRIES = 3  # times that a killed miner repeats its round before the round fails


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class Miner:
    """Actor that mines one round after another."""

    def __init__(
        self, config: Config, datasets: list[str], folder: str, first: NegativesTable | None, driver: DriverContext
    ) -> None:
        driver.enter()
        # Without GPUs, searching uses the cores that encoding used before; Ray gives a process one thread.
        torch.set_num_threads(config.refresh.pool[1])
        spare = partial(spare_gpus, config.training.workers[1])
        self._rounds = MiningRounds(config, datasets, Path(folder), first, on_gpu=spare() > 0)
        self._encoders = EncoderPool(*config.refresh.pool, spare)

    def mine(self, number: int, snapshot: list[Any]) -> dict[str, float] | UserError:
        """Mine one round, and return its metrics or a user error.

        Args:
            snapshot: a reference to the weights, in a list so that Ray passes the reference itself.
        """
        encode = partial(self._encoders.encode, snapshot[0])
        try:
            rounds, open_corpus = self._rounds, self._encoders.open_corpus
            return result_or_error(lambda: rounds.run(number, ray.get(snapshot[0]), encode, open_corpus))
        finally:
            self._encoders.shrink()


@contextmanager
def start_miner(
    config: Config, datasets: Sequence[str], negatives: Any, folder: Path, log: Callable[[str], None]
) -> Iterator[Any]:
    """Run a miner actor for the duration of a run.

    Yields None where nothing is refreshed, and where training waits for each round and leaves no GPU free: then the
    first worker mines; see `clients`.
    """
    if config.refresh.refresh_every is None:
        yield None
        return
    workers, most = config.training.workers[1], config.refresh.pool[1]
    spare = spare_gpus(workers)
    if count_gpus() and not spare and config.refresh.refresh_mode == SYNC:
        log("Refreshes use the GPU of the first worker, while training waits for them.")
        yield None
        return
    if spare < most and count_gpus():
        where = f"on {spare} GPU{'s' if spare > 1 else ''}" if spare else "on CPUs"
        log(
            f"Refreshes encode and search {where}, because {workers} of {count_gpus()} GPUs train: "
            f"{flag_of('refresh_pool')} is {most}."
        )
    # With shares by origin, every round keeps the rows of other origins.
    first = negatives if config.data.negatives_mix else None
    path = str(folder.resolve() / NEGATIVES)
    miner = Miner.remote(config, list(datasets), path, first, DriverContext())  # type: ignore[attr-defined]
    try:
        yield miner
    finally:
        ray.kill(miner)  # and with it its encoders
        if (folder / MODEL).is_dir():  # all steps are done: the running round is not resumed
            remove(folder / NEGATIVES / EMBEDDINGS)
