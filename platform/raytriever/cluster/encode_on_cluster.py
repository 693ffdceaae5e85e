"""Encode the queries or the documents of a data set as a job, in this process or by the actors of a pool."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import ray
import torch

from raytriever.cluster.actor_pool import ActorPool
from raytriever.cluster.gauges import Gauges, with_encoding_gauges
from raytriever.cluster.gpus_and_placement import gpus_each
from raytriever.cluster.ingest import choose_runner
from raytriever.cluster.ray_session import ray_session
from raytriever.core.errors import ConfigError, setting
from raytriever.core.store.cache import record_location
from raytriever.core.store.disk import check_writable
from raytriever.data.data_settings import DataConfig
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.models.device_and_precision import choose_precision
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import Side
from raytriever.retrieval.encoding.embed_corpus import encode_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.encoding_settings import EncodeConfig
from raytriever.retrieval.encoding.load_for_encoding import log_prompts, open_encoder
from raytriever.retrieval.encoding.shard_encoder import encode_in_process, tokenization_of
from raytriever.retrieval.encoding.write_or_reuse_embeddings import StoreWriter


def run_encoding(
    config: EncodeConfig,
    model: ModelConfig,
    data: DataConfig,
    output: Path,
    log: Callable[[str], None],
    *,
    precision: str | None = None,
) -> EmbeddingStore:
    """Encode a data set's queries or documents, or resume an interrupted job. Inputs are checked before encoding."""
    check_writable(output)
    with open_encoding_session(config):
        pool = choose_actor_pool(config)
        on_gpus = pool.gpus > 0 if pool else torch.cuda.is_available()
        # With a pool, actors encode, and the node of this process may have no GPU.
        here = torch.device("cuda" if torch.cuda.is_available() and pool is None else "cpu")
        chosen = precision or ("bf16" if on_gpus and here.type == "cpu" else choose_precision(None, here))
        retriever = open_encoder(model, chosen, here)
        opened = open_dataset(
            data.dataset,
            [],
            max_bad_rows=data.max_bad_rows,
            tokenization=tokenization_of(retriever) if retriever.tokenizer else None,
            run=choose_runner(num_workers=0),
            log=log,
        )
        log_prompts(retriever, opened.name, log)
        side: Side = "query" if config.side == "query" else "passage"
        # The number of tokens per batch changes the last bits of embeddings, so the store's plan has this number.
        tokens = config.batch_tokens or retriever.token_budget("cuda" if on_gpus else "cpu")
        plan = plan_embeddings(model, retriever, opened, side, config.dtype, tokens)
        writer = StoreWriter(output.absolute(), plan)
        writer.check()
        where = f"{pool.fewest} to {pool.most} actors" if pool else f"this process, on {here}"
        log(f"{model.model}: {retriever.summary()}")
        log(f"{opened.name}: {plan.rows:,} texts by {model.model}, {chosen}; {where}")
        run = with_encoding_gauges(pool.encode if pool else encode_in_process, Gauges(output.name))
        store = encode_store(writer, model, retriever, opened, run)
        record_location(store.path)
    return store


def open_encoding_session(config: EncodeConfig) -> AbstractContextManager[None]:
    """Return a Ray session for requested actors, several GPUs or a cluster; else return an empty context."""
    several = torch.cuda.is_available() and torch.cuda.device_count() > 1
    if config.actors is None and not several and not os.environ.get("RAY_ADDRESS"):
        for name in ("actor_gpus", "actor_cpus"):
            if getattr(config, name) != getattr(EncodeConfig, name):
                remedy = f"omit it, or give {setting('actors')}"
                raise ConfigError("has no effect without actors", setting(name), remedy)
        return nullcontext()
    # For every pool, Ray would warn that the actors' arguments are in the object store. Ray Data puts them there on
    # purpose. Errors reach this process as exceptions, even without log lines.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    most = int(config.actors.rpartition(":")[2]) if config.actors else 1
    return ray_session(most * config.actor_cpus)


def choose_actor_pool(config: EncodeConfig) -> ActorPool | None:
    """Return the requested pool, by default as large as the cluster allows. Return None without a Ray session."""
    if not ray.is_initialized():
        return None
    # By default, GPUs that the autoscaler could add are not waited for.
    gpus = gpus_each("actor_gpus", config.actor_gpus, 1.0 if ray.cluster_resources().get("GPU") else 0.0)
    pool = ActorPool(1, 1, config.actor_cpus, gpus)
    fewest, colon, most = (config.actors or f"1:{max(1, pool.fits)}").partition(":")
    pool = replace(pool, fewest=int(fewest), most=int(most if colon else fewest))
    pool.check(pool.fewest, "actors", setting("actors"))
    return pool
