"""Encode one side of a data set as a job, in this process or by a pool of Ray Data actors.

1. Only shard numbers travel. An actor reads the tokens of a shard from disk and commits its embeddings to disk, so the
   object store holds nothing, whatever the corpus.
2. Ray Data scales the pool between its smallest and largest size and gives the shard of a dead actor or node to
   another. Committed shards are not repeated; an uncommitted one starts again with the same batches, so its bytes do
   not depend on failures.
3. Ray would retry forever a shard that kills its actors; the marks of the shard encoder end that."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
from raytriever.cluster.session import ray_session
from raytriever.data.prepare.open import open_dataset
from raytriever.data.quarantine import QuarantineReport
from raytriever.encoding.config import EncodeConfig
from raytriever.encoding.corpus import Runner, encode_store, plan_embeddings
from raytriever.encoding.encode import TOKEN_BUDGET
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.shards import ShardEncoder, encode_in_process, tokenisation_of
from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import StoreWriter
from raytriever.errors import ConfigError, UserError
from raytriever.locking import Claim, claims, join
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.models.retriever import Side
from raytriever.options import flag_of
from raytriever.storage import check_writable

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


def run_in_actors(pool: ActorPool) -> Runner:
    """The runner of a pool, inside a Ray session; the store's directory, the data set and the model's are to be seen
    by every node under the same paths."""

    def run(encoder: ShardEncoder, missing: Sequence[int], advance: Callable[[int], None]) -> None:
        if not missing:
            return
        # The copy holds neither this process's encoder nor its data set.
        sent = replace(encoder, done=None)
        with quiet_data_context():
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
                    raise deserialize_error(row["mistake"])
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
            mistake = serialize_error(error)
        return {"shard": batch["shard"], "mistake": np.array([mistake])}


Say = Callable[[str], None]


@dataclass(frozen=True)
class EncodingResult:
    """The store, and a line on rows that have no embedding, if there are any."""

    store: EmbeddingStore
    quarantined: str | None


def run_encoding(
    dataset: str,
    model: ModelConfig,
    config: EncodeConfig,
    precision: str | None,
    max_bad_rows: float,
    output: Path,
    say: Say,
) -> EncodingResult:
    """Encode, or go on with it; everything is opened and checked before the first text is encoded.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    check_writable(output)
    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        on_gpus = pool.gpus > 0 if pool else torch.cuda.is_available()
        # This process may be on a node without any of the cluster's GPUs.
        here = torch.device("cuda" if torch.cuda.is_available() and pool is None else "cpu")
        chosen = precision or ("bf16" if on_gpus and here.type == "cpu" else choose_precision(None, here))
        retriever = load_for_encoding(model, chosen, here)
        opened = open_dataset(
            dataset,
            [],
            max_bad_rows=max_bad_rows,
            tokenisation=tokenisation_of(retriever),
            run=choose_runner(num_workers=0),
            say=say,
        )
        side: Side = "query" if config.side == "query" else "passage"
        # Another number of tokens a batch gives other last bits: a store is of one, however often it is gone on with.
        tokens = config.batch_tokens or TOKEN_BUDGET["cuda" if on_gpus else "cpu"]
        plan = plan_embeddings(model, retriever, opened, side, config.dtype, tokens)
        work = StoreWriter(output.absolute(), plan)
        work.check()
        who = f"{pool.fewest} to {pool.most} actors" if pool else f"this process, on {here}"
        say(f"{opened.name}: {work.plan.rows:,} texts by {model.model}, {chosen}; {who}")
        run: Runner = with_encoding_gauges(run_in_actors(pool) if pool else encode_in_process, Gauges(output.name))
        store = encode_store(work, model, retriever, opened, run)
    left_out = QuarantineReport.read(store.path)
    return EncodingResult(store, str(left_out) if left_out.total else None)


def open_encoding_session(config: EncodeConfig) -> AbstractContextManager[None]:
    """Ray, where actors are asked for or would be of use."""
    several = torch.cuda.is_available() and torch.cuda.device_count() > 1
    if config.actors is None and not several and not os.environ.get("RAY_ADDRESS"):
        for name in ("actor_gpus", "actor_cpus"):
            if getattr(config, name) != getattr(EncodeConfig, name):
                raise ConfigError(
                    "has no effect where this process encodes", flag_of(name), "leave it out, or give --actors"
                )
        return nullcontext()
    # Else the driver is warned of every pool's actors that their arguments are in the object store, where Ray Data puts
    # them. What goes wrong reaches us as an exception.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    most = int(config.actors.rpartition(":")[2]) if config.actors else 1
    return ray_session(most * config.actor_cpus)


def choose_actor_pool(config: EncodeConfig) -> ActorPool | None:
    """The actors that were asked for, or that the cluster has room for; None outside a Ray session."""
    if not ray.is_initialized():
        return None
    there = ray.cluster_resources()
    gpus = config.actor_gpus
    if gpus is None:
        gpus = 1.0 if there.get("GPU") else 0.0
    fits = int(there.get("GPU", 0) / gpus if gpus else there.get("CPU", 1) / config.actor_cpus)
    fewest, colon, most = (config.actors or f"1:{max(1, fits)}").partition(":")
    pool = ActorPool(int(fewest), int(most if colon else fewest), config.actor_cpus, gpus)
    # Ray would wait for what a cluster of one machine never gets.
    if pool.fewest > fits and not os.environ.get("RAY_ADDRESS"):
        what = f"{gpus:g} GPUs" if gpus else f"{config.actor_cpus} CPUs"
        raise ConfigError(f"{pool.fewest} actors of {what} are more than fit", "--actors", f"at most {fits} fit here")
    return pool
