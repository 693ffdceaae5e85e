"""Refresh of hard negatives on the cluster: a miner actor with encoder actors of its own.

Weights go through the object store, once per node. A round writes embeddings shard by shard, searches, filters and
commits its table to the run directory. Encoders are kept between rounds. An encoder that dies restarts and repeats its
shard; a miner that dies restarts, possibly on another node, and uses the committed shards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from raytriever.cluster.gauges import Gauges
from raytriever.cluster.session import DriverContext
from raytriever.cluster.train.mining_round import EMBEDDINGS, MiningRounds, SnapshotLoader
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.encoding.shards import ShardEncoder
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import UserError
from raytriever.training.background import JobError
from raytriever.training.parallel.model_state import Snapshot
from raytriever.training.refresh.job import RoundResult


@dataclass(frozen=True)
class EncodingTask:
    """Task of the encoders: one store, encoded with one snapshot of the weights.

    Args:
        number: unique among the tasks of a run.
        store: of the embeddings.
        load: loads the encoder of a snapshot.
        dataset: path or URI of the prepared data set.
    """

    number: int
    store: StoreWriter
    load: SnapshotLoader
    dataset: str


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Encoder:
    """Actor that encodes shards, one at a time."""

    def __init__(self, driver: DriverContext) -> None:
        driver.enter()
        self._task = -1
        self._encode: ShardEncoder | None = None

    def encode(self, task: EncodingTask, snapshot: Snapshot, shard: int) -> UserError | None:
        """Encode and commit one shard; returns a user error, because Ray would wrap an error that is raised."""
        if self._encode is None or self._task != task.number:
            self._encode = ShardEncoder(task.store, partial(task.load, snapshot), task.dataset)
            self._task = task.number
        try:
            self._encode(shard)
        except UserError as error:
            return error
        return None


class EncoderPool:
    """Pool of encoders that grows with the number of shards, and shrinks after a round.

    Args:
        fewest, most: number of encoders between rounds, and at most.
        gpus: of each encoder.
    """

    def __init__(self, fewest: int, most: int, gpus: float) -> None:
        self._fewest, self._most, self._gpus = fewest, most, gpus
        self._actors: list[Any] = []
        self._tasks = 0

    def encode(self, snapshot: Any, store: StoreWriter, load: SnapshotLoader, dataset: str, missing: list[int]) -> None:
        """Encode shards on the encoders, and wait for them.

        Args:
            snapshot: a reference to the weights.
            store, load, dataset, missing: see `mining_round.Encode`.

        Raises:
            UserError: a shard cannot be encoded.
        """
        self._tasks += 1
        task = EncodingTask(self._tasks, store, load, dataset)
        encoder = Encoder.options(num_gpus=self._gpus, scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
        while len(self._actors) < min(self._most, len(missing)):
            self._actors.append(encoder.remote(DriverContext()))
        idle, remaining = list(self._actors), list(reversed(missing))
        working: dict[Any, Any] = {}
        while remaining or working:
            while idle and remaining:
                actor = idle.pop(0)
                working[actor.encode.remote(task, snapshot, remaining.pop())] = actor
            [done], _ = ray.wait(list(working))
            idle.append(working.pop(done))
            error = ray.get(done)
            if error is not None:
                raise error

    def shrink(self) -> None:
        """End all encoders but the fewest."""
        while len(self._actors) > self._fewest:
            ray.kill(self._actors.pop())


NEGATIVES, MODEL = "negatives", "model"
TRIES = 3  # times that a killed miner repeats its round before the round fails


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class Miner:
    """Actor that mines one round after another."""

    def __init__(
        self, config: Config, datasets: list[str], folder: str, first: NegativesTable | None, driver: DriverContext
    ) -> None:
        driver.enter()
        # Searching uses the cores that encoding used before; Ray gives a process one thread.
        torch.set_num_threads(config.refresh.pool[1])
        self._rounds = MiningRounds(config, datasets, Path(folder), first)
        # One GPU each where the cluster has more than the workers use.
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) > config.training.workers[1] else 0.0
        self._encoders = EncoderPool(*config.refresh.pool, gpus)

    def mine(self, number: int, snapshot: list[Any]) -> RoundResult:
        """Mine one round.

        Args:
            number: of the round.
            snapshot: a reference to the weights, in a list so that Ray passes the reference itself.
        """
        try:
            return self._rounds.run(number, ray.get(snapshot[0]), partial(self._encoders.encode, snapshot[0]))
        except UserError as error:
            return RoundResult(reason=str(error))
        finally:
            self._encoders.shrink()


class RayMinerClient:
    """Client of the miner for the first worker; see `MinerClient`.

    Args:
        miner: the actor.
        gauges: of the run. Alerts on steps that take long need to know that a round is running.
        waits: whether training waits for each round.
    """

    def __init__(self, miner: Any, gauges: Gauges, waits: bool) -> None:
        self._miner, self._gauges, self._waits = miner, gauges, waits
        self._result: Any = None

    def submit(self, number: int, snapshot: Snapshot) -> None:
        """See `MinerClient.submit`."""
        self._set_gauges(True)
        self._result = self._miner.mine.remote(number, [ray.put(dict(snapshot))])

    def poll(self) -> RoundResult | None:
        """See `MinerClient.poll`."""
        if not ray.wait([self._result], timeout=0)[0]:
            return None
        self._set_gauges(False)
        result: RoundResult = get_result(self._result)
        return result

    def _set_gauges(self, is_running: bool) -> None:
        self._gauges.set("refresh_running", is_running, "1 while a round is under way, else 0")
        self._gauges.set("refresh_waiting", is_running and self._waits, "1 while steps wait for a round, else 0")


def get_result(reference: Any) -> Any:
    """Return the result of a call of an actor; raises `JobError` with the last line of an error of Ray."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:  # a defect, or the actor died too often
        raise JobError(str(error).strip().splitlines()[-1]) from error


@contextmanager
def start_miner(config: Config, datasets: Sequence[str], negatives: Any, folder: Path) -> Iterator[Any]:
    """Run a miner actor for the duration of a run; yields None where nothing is refreshed.

    Args:
        config: of the experiment.
        datasets: paths or URIs of its prepared data sets.
        negatives: reference to the table that training begins with.
        folder: the run directory.
    """
    if config.refresh.refresh_every is None:
        yield None
        return
    # With shares by origin, every round keeps the rows of other origins.
    first = negatives if config.data.negatives_mix else None
    path = str(folder.resolve() / NEGATIVES)
    miner = Miner.remote(config, list(datasets), path, first, DriverContext())  # type: ignore[attr-defined]
    try:
        yield miner
    finally:
        ray.kill(miner)  # and with it its encoders
        if (folder / MODEL).is_dir():  # all steps are done: the running round is not resumed
            shutil.rmtree(folder / NEGATIVES / EMBEDDINGS, ignore_errors=True)
