"""Embeddings of the passages or queries of a data set: read from the cache or a store that the user names, else made.

The key of a store covers the weights, the encoding settings and the texts, so a changed model or corpus never uses old
embeddings. If the cache exceeds its size limit, the least recently used stores are removed first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from raytriever.core.errors import StorageError
from raytriever.core.progress import Progress, activity
from raytriever.core.store.cache import cache_folder, hold, keep_within_bound
from raytriever.core.store.commit import MANIFEST, one_writer, remove
from raytriever.core.terminal import warn
from raytriever.data.dataset import RetrievalDataset
from raytriever.models.inference import TextEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prompts import Prompts, Side
from raytriever.retrieval.encoding.embedding_store import EmbeddingPlan, EmbeddingStore
from raytriever.retrieval.encoding.load_for_encoding import load_for_encoding
from raytriever.retrieval.encoding.shard_encoder import ShardEncoder, SideTexts, encode_in_process
from raytriever.retrieval.encoding.write_or_reuse_embeddings import EMBEDDINGS, StoreWriter, find_earlier, shard_rows

# Function that encodes the missing shards in any order. It calls its last argument with numbers of encoded texts.
Runner = Callable[[ShardEncoder, Sequence[int], Callable[[int], None]], None]


def embed_corpus(
    config: ModelConfig,
    retriever: TextEncoder,
    dataset: RetrievalDataset,
    run: Runner = encode_in_process,
    prompts: Prompts | None = None,
) -> EmbeddingStore:
    """Return the embeddings of all passages of a data set: from the cache, or else by encoding them.

    Args:
        config: settings that name the directory of the weights.
        retriever: encoder that was loaded from this directory.
        dataset: data set whose documents are encoded, in their order.
        run: function that encodes the missing shards, for example with Ray actors (`cluster.encode_on_cluster`).
        prompts: prompts of the data set; by default those that the model has for the data set's name.
    """
    prompts = prompts or retriever.prompts_of(dataset.name)
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32", prompts=prompts)
    path = cache_folder() / EMBEDDINGS / plan.key[:32]
    store = _open_finished(plan, path)
    if store is None:
        with one_writer(path, wait=True, log=warn):
            writer = StoreWriter(path, plan)
            if not writer.has_own_content():  # the folder's name comes from the plan, so other content means damage
                warn(f"{path}: is damaged or changed; encoding again")
                remove(path, whole=True)
            elif (path / MANIFEST).exists():
                warn(f"{path}: is damaged or changed; encoding its damaged shards again")
            store = encode_store(writer, config, retriever, dataset, run, prompts)
    hold(path, store)
    keep_within_bound(path)
    return store


@activity("computing the digest of the encoder")
def plan_embeddings(
    config: ModelConfig,
    retriever: TextEncoder,
    dataset: RetrievalDataset,
    side: Side,
    dtype: str,
    batch_tokens: int | None = None,
    prompts: Prompts | None = None,
) -> EmbeddingPlan:
    """Return the plan of a store for the passages or queries of a data set; see `EmbeddingPlan`, `embed_corpus`."""
    description, side_texts = retriever.description, SideTexts(dataset, side)
    prefix = (prompts or retriever.prompts_of(dataset.name))[side]
    length = description.query_length if side == "query" else description.passage_length
    return EmbeddingPlan(
        model=config.model,
        model_digest=retriever.digest(config, side),
        dataset=dataset.name,
        data_digest=side_texts.digest,
        side=side,
        prefix=prefix,
        length=length,
        pooling=description.pooling,
        similarity=description.similarity,
        precision=retriever.precision,
        dtype=dtype,
        rows=len(side_texts.texts),
        dim=retriever.dim,
        shard_rows=shard_rows(len(side_texts.texts)),
        batch_tokens=batch_tokens,
    )


def encode_store(
    writer: StoreWriter,
    config: ModelConfig,
    retriever: TextEncoder,
    dataset: RetrievalDataset,
    run: Runner = encode_in_process,
    prompts: Prompts | None = None,
) -> EmbeddingStore:
    """Return the store of a plan. Open it if it is finished; else encode the texts whose embeddings no store has.

    Args:
        writer: writer of the store; no other process may write it.
        config, retriever, dataset, prompts: the inputs of the plan.
        run: function that encodes the missing shards, for example with Ray actors (`cluster.encode_on_cluster`).
    """
    store = _open_finished(writer.plan, writer.path)
    if store is not None:
        writer.remove_others()
        return store
    writer.begin()
    plan = writer.plan
    side_texts = SideTexts(dataset, plan.side, prompts)
    missing = writer.missing()
    earlier = find_earlier(writer, missing, lambda rows: side_texts.keys(rows, plan.prefix))
    load = partial(load_for_encoding, replace(config, model=_absolute(config.model)), plan.precision)
    encoder = ShardEncoder(writer, load, _absolute(str(dataset.location)), prompts=prompts, earlier=earlier)
    encoder.retriever, encoder.side_texts = retriever, side_texts  # both are already loaded in this process
    texts = {number: encoder.texts_to_encode(number) for number in missing}
    encoded = plan.rows - sum(texts.values())
    if not retriever.is_local or (plan.side == "query" and dataset.added_queries):
        run = encode_in_process  # other processes cannot load the encoder, or do not have the added queries
    if earlier is not None:
        count = sum(map(earlier.count, missing))
        warn(f"{side_texts.name}: {plan.rows:,} texts, {count:,} of them from earlier encodings")
    retriever.announce(
        content
        for number in missing
        if texts[number]
        for content in side_texts.read(retriever, plan.rows_of(number))[0]
    )
    with Progress("queries" if plan.side == "query" else "passages", plan.rows, "text", encoded) as progress:
        encode_in_process(encoder, [number for number in missing if not texts[number]], progress.advance)
        run(encoder, [number for number in missing if texts[number]], progress.advance)
    return writer.finish()


def _open_finished(plan: EmbeddingPlan, path: Path) -> EmbeddingStore | None:
    try:
        store = EmbeddingStore.open(path)
    except StorageError:
        return None
    return store if store.plan.key == plan.key else None


def _absolute(name: str) -> str:
    """Make a path absolute, because workers have another current directory. Return a name or a URI unchanged."""
    return os.path.abspath(name) if os.path.isdir(name) else name


# For each field of a plan, what an error message says about a store whose plan has another value.
_DIFFERENCES = {
    "side": "embeddings of queries",
    "data_digest": "embeddings of another data set",
    "model_digest": "embeddings by another model",
    "prefix": "embeddings of texts with another prefix",
    "length": "embeddings of texts cut at another length",
    "pooling": "embeddings with another pooling",
    "similarity": "embeddings for another similarity",
    "dim": "embeddings of another dimension",
}


def open_matching_store(
    path: Path, config: ModelConfig, retriever: TextEncoder, dataset: RetrievalDataset
) -> EmbeddingStore:
    """Open a finished store of a data set's passages. `retriever` must have encoded them, in any precision and dtype.

    Args:
        config: settings that name the directory of the weights.
        retriever: encoder that was loaded from this directory.

    Raises:
        StorageError: the store has other content, was never finished, or is damaged.
    """
    store = EmbeddingStore.open(path)
    plan = plan_embeddings(config, retriever, dataset, "passage", "fp32")
    for name, content in _DIFFERENCES.items():
        stored, expected = getattr(store.plan, name), getattr(plan, name)
        if stored != expected:
            values = "" if name.endswith("digest") else f" ({stored!r}, here {expected!r})"
            remedy = f"give a directory that `raytriever encode` wrote for {dataset.name} with {config.model}"
            raise StorageError(f"holds {content}{values}", str(path), remedy)
    return store
