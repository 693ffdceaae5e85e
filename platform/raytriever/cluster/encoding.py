"""Encodes one side of a data set as a job of its own, in this process or by a pool of actors."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import ray
import torch

from raytriever.cluster.encode import ActorPool, in_actors
from raytriever.cluster.gauges import Gauges
from raytriever.cluster.ingest import by_size
from raytriever.cluster.job_gauges import watched_encoding
from raytriever.cluster.session import ray_session
from raytriever.data.open import open_dataset
from raytriever.data.quarantine import QuarantineReport
from raytriever.errors import ConfigError
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.models.retriever import Side
from raytriever.options import flag_of
from raytriever.retrieval.corpus import Runner, embed, plan_embeddings
from raytriever.retrieval.embedding_work import EmbeddingWork
from raytriever.retrieval.embeddings import EmbeddingStore
from raytriever.retrieval.encode import TOKEN_BUDGET
from raytriever.retrieval.encode_config import EncodeConfig
from raytriever.retrieval.encode_shard import in_this_process, tokenisation_of
from raytriever.retrieval.loading import load_for_encoding
from raytriever.storage import check_writable

Say = Callable[[str], None]


@dataclass(frozen=True)
class Encoded:
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
) -> Encoded:
    """Encode, or go on with it; everything is opened and checked before the first text is encoded.

    Raises:
        UserError: something a user can mend; see `errors`.
    """
    check_writable(output)
    with encoding_session(config):
        pool = encoding_pool(config)
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
            run=by_size(num_workers=0),
            say=say,
        )
        side: Side = "query" if config.side == "query" else "passage"
        # Another number of tokens a batch gives other last bits: a store is of one, however often it is gone on with.
        tokens = config.batch_tokens or TOKEN_BUDGET["cuda" if on_gpus else "cpu"]
        plan = plan_embeddings(model, retriever, opened, side, config.dtype, tokens)
        work = EmbeddingWork(output.absolute(), plan)
        work.check()
        who = f"{pool.fewest} to {pool.most} actors" if pool else f"this process, on {here}"
        say(f"{opened.name}: {work.plan.rows:,} texts by {model.model}, {chosen}; {who}")
        run: Runner = watched_encoding(in_actors(pool) if pool else in_this_process, Gauges(output.name))
        store = embed(work, model, retriever, opened, run)
    left_out = QuarantineReport.read(store.path)
    return Encoded(store, str(left_out) if left_out.total else None)


def encoding_session(config: EncodeConfig) -> AbstractContextManager[None]:
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


def encoding_pool(config: EncodeConfig) -> ActorPool | None:
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
