"""Encode one side of a data set as a job, in this process or by a pool of Ray Data actors.

1. Only shard numbers travel. An actor reads the tokens of a shard from disk and commits its embeddings to disk, so the
   object store holds nothing, for a corpus of any size.
2. Ray Data scales the pool between its smallest and largest size and gives the shard of a dead actor or node to
   another. Committed shards are not repeated; an uncommitted one starts again with the same batches, so its bytes do
   not depend on failures.
3. Ray would retry forever a shard that kills its actors; the shard encoder counts its attempts and ends that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import ray
import ray.data
import torch
from numpy import ndarray
from ray.data import ActorPoolStrategy

from raytriever.cluster.gauges import Gauges, with_encoding_gauges
from raytriever.cluster.ingest import choose_runner, deserialize_error, quiet_data_context, serialize_error
from raytriever.cluster.placement import count_gpus, hide_unreserved_gpus
from raytriever.cluster.session import ray_session
from raytriever.data.config import DataConfig
from raytriever.data.prepare.open import open_dataset
from raytriever.encoding.config import EncodeConfig
from raytriever.encoding.corpus import Runner, encode_store, plan_embeddings
from raytriever.encoding.encode import token_budget
from raytriever.encoding.loading import load_for_encoding, report_prompts
from raytriever.encoding.shards import ShardEncoder, encode_in_process, tokenisation_of
from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import put_next_in_place, writer_at
from raytriever.errors import ConfigError, UserError, setting
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.prompts import Side
from raytriever.store.cache import record_location
from raytriever.store.disk import check_writable
from raytriever.store.lock import LockClaim, claims, join
from raytriever.store.objects import trust_stores

# One running and one waiting: an actor is not idle while Ray Data processes its result.
_TASKS_PER_ACTOR = 2
# Shards of a task: with several, a GPU encodes one while the next is read and the one before is written.
_SHARDS_PER_TASK = {"cpu": 1, "gpu": 4}


@dataclass(frozen=True)
class ActorPool:
    """Size and resources of the actors that encode or search.

    Args:
        fewest, most: number of actors; Ray Data starts more if there is work and free resources.
        cpus: cores and threads of each actor.
        gpus: GPUs of each actor; a fraction if several share one, 0 to encode on the CPU.
    """

    fewest: int
    most: int
    cpus: int = 1
    gpus: float = 0.0

    @property
    def fits(self) -> int:
        """Number of such actors that the cluster has resources for."""
        resources = ray.cluster_resources()
        return int(resources.get("GPU", 0) / self.gpus if self.gpus else resources.get("CPU", 1) / self.cpus)


def check_resources(actors: int, pool: ActorPool, kind: str, where: str | None) -> None:
    """Raise `ConfigError` for resources that a cluster of one machine never gets; other clusters may grow."""
    if actors > (fits := pool.fits) and not os.environ.get("RAY_ADDRESS"):
        size = f"{pool.gpus:g} GPUs" if pool.gpus else f"{pool.cpus} CPUs"
        raise ConfigError(f"{actors} {kind} with {size} each do not fit", where, f"at most {fits} fit here")


def run_in_actors(pool: ActorPool) -> Runner:
    """Return a runner that encodes in a pool of actors, inside a Ray session.

    Every node must see the store, the data set and the model under the same paths.
    """

    def run(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        if not missing:
            return
        # The copy without the encoder and the data set of this process.
        sent = replace(encoder, on_progress=None)
        # As many tasks as the actors can share, so that none is idle at the end.
        most = max(1, len(missing) // (_TASKS_PER_ACTOR * pool.most))
        size = min(most, _SHARDS_PER_TASK["gpu" if pool.gpus else "cpu"])
        tasks = -(-len(missing) // size)
        with quiet_data_context():
            numbers = ray.data.from_items([{"shard": number} for number in missing], override_num_blocks=tasks)
            shards = numbers.map_batches(
                _Actor,
                fn_constructor_args=(sent, pool, claims()),
                compute=ActorPoolStrategy(
                    min_size=min(pool.fewest, tasks),
                    max_size=min(pool.most, tasks),
                    max_tasks_in_flight_per_actor=_TASKS_PER_ACTOR,
                ),
                batch_size=size,  # Ray Data wants a number where actors have GPUs
                num_cpus=pool.cpus,
                num_gpus=pool.gpus,
            )
            for row in shards.iter_rows():
                if row["error"]:
                    raise deserialize_error(row["error"])
                advance(encoder.texts_to_encode(row["shard"]))

    return run


class _Actor:
    """Encodes shards. Errors are returned as values, because Ray would wrap exceptions."""

    def __init__(self, encoder: ShardEncoder, pool: ActorPool, driver_claims: tuple[LockClaim, ...]) -> None:
        hide_unreserved_gpus()
        join(driver_claims)
        trust_stores()
        torch.set_num_threads(pool.cpus)
        self._encoder = encoder

    def __call__(self, batch: dict[str, ndarray]) -> Iterator[dict[str, ndarray]]:
        numbers = [int(number) for number in batch["shard"]]
        try:
            for number in self._encoder.encode(numbers):
                yield {"shard": np.array([number]), "error": np.array([""])}
        except UserError as error:
            yield {"shard": np.array(numbers[:1]), "error": np.array([serialize_error(error)])}


def run_encoding(
    config: EncodeConfig,
    model: ModelConfig,
    data: DataConfig,
    output: Path,
    log: Callable[[str], None],
    *,
    precision: str | None = None,
) -> EmbeddingStore:
    """Encode one side of a data set, or resume. Everything is opened and checked before the first text is encoded.

    Raises:
        UserError: the data set, the model, the output directory or the number of actors is not usable.
    """
    check_writable(output)
    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        on_gpus = pool.gpus > 0 if pool else torch.cuda.is_available()
        # This process may run on a node without a GPU.
        here = torch.device("cuda" if torch.cuda.is_available() and pool is None else "cpu")
        chosen = precision or ("bf16" if on_gpus and here.type == "cpu" else choose_precision(None, here))
        retriever = load_for_encoding(model, chosen, here)
        opened = open_dataset(
            data.dataset,
            [],
            max_bad_rows=data.max_bad_rows,
            tokenisation=tokenisation_of(retriever),
            run=choose_runner(num_workers=0),
            report=log,
        )
        report_prompts(retriever, opened.name, log)
        side: Side = "query" if config.side == "query" else "passage"
        # The number of tokens in a batch changes the last bits of embeddings, so a resumed store keeps its number.
        tokens = config.batch_tokens or token_budget(retriever, "cuda" if on_gpus else "cpu")
        plan = plan_embeddings(model, retriever, opened, side, config.dtype, tokens, on_gpu=on_gpus)
        work = writer_at(output.absolute(), plan)
        work.check()
        where = f"{pool.fewest} to {pool.most} actors" if pool else f"this process, on {here}"
        log(f"{model.model}: {retriever.summary()}")
        log(f"{opened.name}: {work.plan.rows:,} texts by {model.model}, {chosen}; {where}")
        run: Runner = with_encoding_gauges(run_in_actors(pool) if pool else encode_in_process, Gauges(output.name))
        store = encode_store(work, model, retriever, opened, run)
        put_next_in_place(output.absolute())
        store = replace(store, path=output.absolute())
        record_location(store.path)
    return store


def open_encoding_session(config: EncodeConfig) -> AbstractContextManager[None]:
    """Return a Ray session if actors are requested or would help, otherwise a context that does nothing.

    Raises:
        ConfigError: flags of actors are given, but this process encodes.
    """
    several = torch.cuda.is_available() and torch.cuda.device_count() > 1
    if config.actors is None and not several and not os.environ.get("RAY_ADDRESS"):
        for name in ("actor_gpus", "actor_cpus"):
            if getattr(config, name) != getattr(EncodeConfig, name):
                raise ConfigError(
                    "has no effect without actors", setting(name), f"omit it, or give {setting('actors')}"
                )
        return nullcontext()
    # Otherwise Ray warns for every pool that the arguments of its actors are in the object store, where Ray Data puts
    # them. Errors reach this process as exceptions.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    most = int(config.actors.rpartition(":")[2]) if config.actors else 1
    return ray_session(most * config.actor_cpus)


def choose_actor_pool(config: EncodeConfig) -> ActorPool | None:
    """Return the requested pool, or one that the cluster has resources for; None outside a Ray session.

    Raises:
        ConfigError: more actors are requested than fit on this machine, or GPUs of a cluster that has none.
    """
    if not ray.is_initialized():
        return None
    if config.actor_gpus and not count_gpus():  # otherwise Ray would wait for one
        raise ConfigError(
            "the cluster has no GPU", setting("actor_gpus"), "omit it to use CPUs, or add a node with a GPU"
        )
    gpus = config.actor_gpus
    if gpus is None:
        gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
    pool = ActorPool(1, 1, config.actor_cpus, gpus)
    fewest, colon, most = (config.actors or f"1:{max(1, pool.fits)}").partition(":")
    pool = replace(pool, fewest=int(fewest), most=int(most if colon else fewest))
    check_resources(pool.fewest, pool, "actors", setting("actors"))
    return pool
