"""Refresh hard negatives during training: a miner actor with encoder actors of its own.

Weights go through the object store, once per node; a round writes embeddings shard by shard, searches, filters and
commits the round's table to the run directory. Encoders live from round to round. An encoder that dies starts again and
repeats its shard; a miner that dies starts elsewhere and finds the committed shards. Training waits only where the
settings say so, and keeps its table when a round fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from raytriever.cluster.gauges import Gauges, run_label
from raytriever.cluster.session import DriverContext
from raytriever.cluster.train.mining_round import EMBEDDINGS, MiningRounds, SnapshotLoader
from raytriever.config import Config
from raytriever.data.negatives import NegativesTable
from raytriever.encoding.shards import ShardEncoder
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import UserError
from raytriever.losses.engine.workers import Workers
from raytriever.training.parallel.model_state import Snapshot
from raytriever.training.refresh.config import SYNC
from raytriever.training.refresh.plan import Mined, RefreshPlan
from raytriever.training.training_data import Material


@dataclass(frozen=True)
class Task:
    """What is encoded.

    Args:
        number: another for another store or other weights.
        work: the store.
        load: loads the encoder of a snapshot.
        place: where the data set stands.
    """

    number: int
    work: StoreWriter
    load: SnapshotLoader
    place: str


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Encoder:
    """Encodes shards, one at a time, of one task after another."""

    def __init__(self, workplace: DriverContext) -> None:
        workplace.enter()
        self._task = -1
        self._encode: ShardEncoder | None = None

    def encode(self, task: Task, snapshot: Snapshot, shard: int) -> UserError | None:
        """Encode and commit one shard; answers what a user can mend, which Ray would wrap if it were raised."""
        if self._encode is None or self._task != task.number:
            self._encode = ShardEncoder(task.work, partial(task.load, snapshot), task.place)
            self._task = task.number
        try:
            self._encode(shard)
        except UserError as error:
            return error
        return None


class Encoders:
    """A pool that grows with the shards there are to encode, and shrinks when a round is over.

    Args:
        fewest, most: how many stay, and how many there may be.
        gpus: of each.
    """

    def __init__(self, fewest: int, most: int, gpus: float) -> None:
        self._fewest, self._most, self._gpus = fewest, most, gpus
        self._actors: list[Any] = []
        self._tasks = 0

    def encode(self, snapshot: Any, work: StoreWriter, load: SnapshotLoader, place: str, missing: list[int]) -> None:
        """Have shards encoded.

        Args:
            snapshot: a reference to the weights.
            work, load, place, missing: see `refresh_round.Encode`.

        Raises:
            UserError: a shard cannot be encoded.
        """
        self._tasks += 1
        task = Task(self._tasks, work, load, place)
        encoder = Encoder.options(num_gpus=self._gpus, scheduling_strategy="SPREAD")  # type: ignore[attr-defined]
        while len(self._actors) < min(self._most, len(missing)):
            self._actors.append(encoder.remote(DriverContext()))
        idle, left = list(self._actors), list(reversed(missing))
        working: dict[Any, Any] = {}
        while left or working:
            while idle and left:
                actor = idle.pop(0)
                working[actor.encode.remote(task, snapshot, left.pop())] = actor
            [done], _ = ray.wait(list(working))
            idle.append(working.pop(done))
            mistake = ray.get(done)
            if mistake is not None:
                raise mistake

    def shrink(self) -> None:
        """Let go all but the fewest."""
        while len(self._actors) > self._fewest:
            ray.kill(self._actors.pop())


FOLDER, MODEL = "negatives", "model"
# A miner that was killed does its round again so often before the round has failed.
TRIES = 3


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=TRIES)
class Miner:
    """Does one round after another."""

    def __init__(
        self, config: Config, places: list[str], folder: str, first: NegativesTable | None, workplace: DriverContext
    ) -> None:
        workplace.enter()
        # Searching takes as many cores as encoding does, which is over then; Ray leaves a process one thread.
        torch.set_num_threads(config.refresh.pool[1])
        self._rounds = MiningRounds(config, places, Path(folder), first)
        # A GPU each where there are more than the workers take.
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) > config.training.workers[1] else 0.0
        self._encoders = Encoders(*config.refresh.pool, gpus)

    def mine(self, number: int, snapshot: list[Any]) -> Mined:
        """One round.

        Args:
            number: of the round.
            snapshot: a reference to the weights; in a list, so that Ray hands over the reference.
        """
        try:
            return self._rounds.run(number, ray.get(snapshot[0]), partial(self._encoders.encode, snapshot[0]))
        except UserError as error:
            return Mined(reason=str(error))
        finally:
            self._encoders.shrink()


class RayPool:
    """A `refresh_plan.Pool` that hands rounds to a miner.

    Args:
        miner: the actor.
        gauges: of the run; those who watch for steps are to know that these wait.
        waits: whether training waits for each round.
    """

    def __init__(self, miner: Any, gauges: Gauges, waits: bool) -> None:
        self._miner, self._gauges, self._waits = miner, gauges, waits
        self._answer: Any = None

    def begin(self, number: int, snapshot: Snapshot) -> None:
        """See `Pool`."""
        self._tell(True)
        self._answer = self._miner.mine.remote(number, [ray.put(dict(snapshot))])

    def answer(self) -> Mined | None:
        """See `Pool`."""
        if not ray.wait([self._answer], timeout=0)[0]:
            return None
        self._tell(False)
        try:
            found: Mined = ray.get(self._answer)
        except ray.exceptions.RayError as error:  # a defect, or the miner died too often
            return Mined(reason=str(error).strip().splitlines()[-1])
        return found

    def _tell(self, mines: bool) -> None:
        self._gauges.set("refresh_running", mines, "1 while a round is under way, else 0")
        self._gauges.set("refresh_waiting", mines and self._waits, "1 while steps wait for a round, else 0")


@contextmanager
def mining(config: Config, places: Sequence[str], negatives: Any, folder: Path) -> Iterator[Any]:
    """A miner for the length of a run, on the driver; None where nothing is refreshed.

    Args:
        config: the experiment.
        places: where its data sets stand prepared.
        negatives: a reference to the table training begins with.
        folder: the run directory.
    """
    if config.refresh.refresh_every is None:
        yield None
        return
    # Rows of other origins stay beside those that are mined where shares are asked for by origin.
    first = negatives if config.data.negatives_mix else None
    where = str(folder.resolve() / FOLDER)
    miner = Miner.remote(config, list(places), where, first, DriverContext())  # type: ignore[attr-defined]
    try:
        yield miner
    finally:
        ray.kill(miner)  # and with it its encoders
        if (folder / MODEL).is_dir():  # all steps are done: nobody goes on with the round under way
            shutil.rmtree(folder / FOLDER / EMBEDDINGS, ignore_errors=True)


def refresh_plan(
    job: Mapping[str, Any], config: Config, material: Material, folder: Path, workers: Workers, device: torch.device
) -> RefreshPlan | None:
    """A worker's plan; every worker makes the call.

    Args:
        job: of `train_on_cluster`: its `miner`, its `queue`, and the last step that earlier calls `told` of.
        config: the experiment.
        material: what the worker has opened.
        folder: the run directory.
        workers, device: the group, and where its collectives take their tensors.
    """
    every = config.refresh.refresh_every
    if every is None:
        return None
    told = max(job["told"], job["queue"].last_step())
    told = int(workers.maximum(torch.tensor(told, device=device)))
    waits = config.refresh.refresh_mode == SYNC
    pool = RayPool(job["miner"], Gauges(run_label(folder)), waits) if workers.rank == 0 else None
    return RefreshPlan(every, waits, folder / FOLDER, material.read_negatives, pool, told)
