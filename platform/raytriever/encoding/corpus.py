"""Embeddings of one side of a data set: opened from the cache, encoded where they are missing, or opened from a store
that the user names.

A store is keyed by the weights, the settings of encoding and the texts, so a changed model or corpus is never
answered from old embeddings. When the cache grows beyond its bound, the stores used longest ago are removed first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from raytriever.activity import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.encoding.loading import load_for_encoding
from raytriever.encoding.shards import ShardEncoder, SideTexts, encode_in_process
from raytriever.encoding.store import EmbeddingStore
from raytriever.encoding.writer import EmbeddingPlan, StoreWriter, shard_rows
from raytriever.errors import StorageError
from raytriever.locking import owner_of
from raytriever.models.config import ModelConfig
from raytriever.models.retriever import Retriever, Side
from raytriever.models.source import resolve_model
from raytriever.models.tokenisation import content_tokenizer_json
from raytriever.progress import Progress
from raytriever.storage import MANIFEST, cache_folder, files_below, one_writer, sha256_of
from raytriever.terminal import warn

CACHE_BYTES = 4 * 2**30
# Encodes the missing shards in any order, and tells a progress how many texts were encoded.
Runner = Callable[[ShardEncoder, Sequence[int], Callable[[int], None]], None]


def embed_corpus(
    config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset, run: Runner = encode_in_process
) -> EmbeddingStore:
    """All passages of a data set in the cache, encoded now or found there.

    Args:
        config: names the directory the weights came from.
        retriever: loaded from there.
        dataset: whose documents are encoded, in their order.
        run: who encodes; `cluster.encode` knows of actors.

    Raises:
        ModelError: an embedding is not finite.
    """
    folder = cache_folder() / "embeddings"
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    place = folder / plan.key[:32]
    store = _store_of(plan, place)
    if store is None:
        with one_writer(place, wait=True, report=warn):
            work = StoreWriter(place, plan)
            if not work.is_ours():  # the name is the plan's: what is there instead is damage
                warn(f"{place}: is torn or changed; encoding again")
                shutil.rmtree(place)
            elif (place / MANIFEST).exists():
                warn(f"{place}: is torn or changed; encoding again what is not whole")
            store = encode_store(work, config, retriever, dataset, run)
    os.utime(place)
    _prune(folder, keep=place)
    return store


@activity("computing the digest of the encoder")
def plan_embeddings(
    config: ModelConfig,
    retriever: Retriever,
    dataset: RetrievalDataset,
    side: Side,
    dtype: str,
    batch_tokens: int | None = None,
) -> EmbeddingPlan:
    """What a store of one side of a data set is to hold; see `EmbeddingPlan`."""
    directory = resolve_model(config.model, config.revision)
    files = [file for file in files_below(directory) if file.suffix == ".safetensors"]
    weights = {str(file.relative_to(directory)): sha256_of(file) for file in files}
    description, corpus = retriever.description, SideTexts(dataset, side)
    prefix, length = (
        (description.query_prefix, description.query_length)
        if side == "query"
        else (description.passage_prefix, description.passage_length)
    )
    decides = [weights, content_tokenizer_json(retriever.tokenizer), description.towers]
    return EmbeddingPlan(
        model=config.model,
        model_digest=hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest(),
        dataset=dataset.name,
        data_digest=corpus.digest,
        side=side,
        prefix=prefix,
        length=length,
        pooling=description.pooling,
        similarity=description.similarity,
        precision={torch.float32: "fp32", torch.bfloat16: "bf16"}[next(retriever.parameters()).dtype],
        dtype=dtype,
        rows=len(corpus.texts),
        width=retriever.width,
        shard_rows=shard_rows(len(corpus.texts)),
        batch_tokens=batch_tokens,
    )


def encode_store(
    work: StoreWriter,
    config: ModelConfig,
    retriever: Retriever,
    dataset: RetrievalDataset,
    run: Runner = encode_in_process,
) -> EmbeddingStore:
    """The store of a plan: found whole, gone on with, or made.

    Args:
        work: where, and what; no other process may be making it.
        config, retriever, dataset: what the plan was made of.
        run: who encodes; `cluster.encode` knows of actors.

    Raises:
        ModelError: an embedding is not finite, or the encoder's process dies over and over.
        StorageError: the directory holds something else, or cannot be written.
    """
    store = _store_of(work.plan, work.path)
    if store is not None:
        return store
    work.begin()
    plan = work.plan
    corpus = SideTexts(dataset, plan.side)
    missing = work.missing()
    there = plan.rows - sum(len(plan.rows_of(number)) for number in missing)
    load = partial(load_for_encoding, replace(config, model=_from_anywhere(config.model)), plan.precision)
    encoder = ShardEncoder(work, load, _from_anywhere(str(dataset.place)))
    encoder.retriever, encoder.corpus = retriever, corpus  # this process has them
    with Progress("queries" if plan.side == "query" else "passages", plan.rows, "text", there) as progress:
        run(encoder, missing, progress.advance)
    return work.finish(f"{corpus.name} ({plan.side})", corpus.texts)


def _store_of(plan: EmbeddingPlan, place: Path) -> EmbeddingStore | None:
    """The finished store of a plan; None where it is not finished, or damaged: the shards that are whole are kept."""
    try:
        store = EmbeddingStore.open(place)
    except StorageError:
        return None
    return store if store.meta["key"] == plan.key else None


def _from_anywhere(name: str) -> str:
    """A path for processes that have another current directory; a name or a URI as it is."""
    return os.path.abspath(name) if os.path.isdir(name) else name


def _prune(folder: Path, keep: Path) -> None:
    """Remove the entries used longest ago until the rest is within the bound."""
    entries = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    total = 0
    for path in entries:
        total += sum(file.stat().st_size for file in files_below(path))
        if total > CACHE_BYTES and path != keep and owner_of(path) is None:
            shutil.rmtree(path, ignore_errors=True)


# By what a plan names: what the store holds where it differs.
_DIFFERS = {
    "side": "queries",
    "data_digest": "another data set",
    "model_digest": "another model's embeddings",
    "prefix": "embeddings of texts with another prefix",
    "length": "embeddings of texts cut at another length",
    "pooling": "embeddings of another pooling",
    "similarity": "embeddings for another similarity",
    "width": "embeddings of another width",
}


def open_matching_store(
    path: Path, config: ModelConfig, retriever: Retriever, dataset: RetrievalDataset
) -> EmbeddingStore:
    """A finished store of a data set's passages, made by a retriever in whatever arithmetic and storage.

    Args:
        path: of the store.
        config: names the directory the weights came from.
        retriever: loaded from there.
        dataset: the data set.

    Raises:
        StorageError: it holds something else, was never finished, or is damaged.
    """
    store = EmbeddingStore.open(path)
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    for name, what in _DIFFERS.items():
        there, here = store.meta[name], getattr(plan, name)
        if there != here:
            told = "" if name.endswith("digest") else f" ({there!r}, here {here!r})"
            remedy = f"name the passages of {dataset.name} as jobs/encode.py encoded them with {config.model}"
            raise StorageError(f"holds {what}{told}", str(path), remedy)
    return store
