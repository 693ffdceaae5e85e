"""Encoders that stay from round to round: a round on a small corpus is over before a new process has loaded torch.

What travels is the weights, once a node through the object store, and numbers of shards; embeddings go to the disk. An
encoder whose process or node dies is started again, elsewhere if need be, and does its shard again; one that a text
kills over and over is ended by the marks of `retrieval.encode_shard`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from raytriever.cluster.refresh_round import SnapshotLoader
from raytriever.cluster.session import Workplace
from raytriever.errors import UserError
from raytriever.retrieval.embedding_work import EmbeddingWork
from raytriever.retrieval.encode_shard import ShardEncoder
from raytriever.training.refresh_snapshot import Snapshot


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
    work: EmbeddingWork
    load: SnapshotLoader
    place: str


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Encoder:
    """Encodes shards, one at a time, of one task after another."""

    def __init__(self, workplace: Workplace) -> None:
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

    def encode(self, snapshot: Any, work: EmbeddingWork, load: SnapshotLoader, place: str, missing: list[int]) -> None:
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
            self._actors.append(encoder.remote(Workplace()))
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
