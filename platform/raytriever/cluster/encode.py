"""Shards of embeddings made by a pool of actors, by Ray Data.

1. What travels is numbers of shards. An actor reads the tokens of a shard from disk and commits its embeddings to disk,
   so the object store holds nothing, whatever the corpus.
2. Ray Data starts between the fewest and the most actors, as there is work and room, and gives a shard whose actor or
   node died to another. A shard that was committed before is not made again; what was not is made from its
   beginning, of the same batches, so the bytes are those of a run in which nobody died.
3. Ray would give out for ever a shard that kills its actors; the marks of `retrieval.encode_shard` end that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import ray.data
import torch
from numpy import ndarray
from ray.data import ActorPoolStrategy

from raytriever.cluster.ingest import quiet_context
from raytriever.cluster.mistakes import mistake_of, told
from raytriever.errors import UserError
from raytriever.locking import Claim, claims, join
from raytriever.retrieval.corpus import Runner
from raytriever.retrieval.encode_shard import ShardEncoder

# One at hand and one waiting: an actor does not idle while Ray Data hears that it is done.
_TASKS_AT_AN_ACTOR = 2


@dataclass(frozen=True)
class ActorPool:
    """Who encodes.

    Args:
        fewest, most: actors; Ray Data starts more as there is work and room.
        cpus: cores of each, and threads it computes with.
        gpus: of each; a fraction where several share one, 0 where it encodes on its cores.
    """

    fewest: int
    most: int
    cpus: int = 1
    gpus: float = 0.0


def in_actors(pool: ActorPool) -> Runner:
    """The runner of a pool, inside a Ray session; the store's directory, the data set and the model's are to be seen
    by every node under the same paths."""

    def run(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        if not missing:
            return
        # The copy holds neither this process's encoder nor its data set.
        sent = replace(encoder, done=None)
        with quiet_context():
            numbers = ray.data.from_items([{"shard": number} for number in missing], override_num_blocks=len(missing))
            shards = numbers.map_batches(
                _Actor,
                fn_constructor_args=(sent, pool, claims()),
                compute=ActorPoolStrategy(
                    min_size=min(pool.fewest, len(missing)),
                    max_size=min(pool.most, len(missing)),
                    max_tasks_in_flight_per_actor=_TASKS_AT_AN_ACTOR,
                ),
                batch_size=1,
                num_cpus=pool.cpus,
                num_gpus=pool.gpus,
            )
            for row in shards.iter_rows():
                if row["mistake"]:
                    raise mistake_of(row["mistake"])
                advance(len(encoder.work.plan.rows_of(row["shard"])))

    return run


class _Actor:
    """Encodes shards. Mistakes travel as values: raised, Ray would wrap them."""

    def __init__(self, encoder: ShardEncoder, pool: ActorPool, of_driver: tuple[Claim, ...]) -> None:
        join(of_driver)
        torch.set_num_threads(pool.cpus)
        if not pool.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # one that was not asked for is somebody else's
        self._encoder = encoder

    def __call__(self, batch: dict[str, ndarray]) -> dict[str, ndarray]:
        [number] = batch["shard"]
        mistake = ""
        try:
            self._encoder(int(number))
        except UserError as error:
            mistake = told(error)
        return {"shard": batch["shard"], "mistake": np.array([mistake])}
