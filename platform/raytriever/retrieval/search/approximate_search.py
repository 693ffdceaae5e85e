"""Index job: build or open the approximate index of a data set's passages, search it, and evaluate its recall."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.core.errors import ConfigError, StorageError, setting
from raytriever.core.store.capacity import check_disk, check_memory
from raytriever.core.store.commit import committed_directory, one_writer
from raytriever.core.store.disk import check_writable
from raytriever.core.terminal import text_table
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.models.inference import TextEncoder
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, open_matching_store, plan_embeddings
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.encode_texts import encode_queries
from raytriever.retrieval.encoding.load_for_encoding import log_prompts, open_encoder
from raytriever.retrieval.index.approximate.ann_index import ApproximateIndex
from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.faiss_indexes import POINTS, default_code_bytes, default_lists
from raytriever.retrieval.index.approximate.index_recall import evaluate_recall, format_count
from raytriever.retrieval.index.approximate.index_settings import IndexConfig
from raytriever.retrieval.index.approximate.stored_index import read_index, read_meta, save_index, write_embeddings
from raytriever.retrieval.index.exact_top_k import tie_order, top_k
from raytriever.retrieval.search.calibration_file import current_calibration
from raytriever.retrieval.search.exact_search import PassageIndex, format_hits

# Default split of RoarGraph's training queries. Other kinds of index need no queries.
_TRAINING_SPLIT = "train"
CUTOFFS = (10, 100)


@dataclass(frozen=True, kw_only=True)
class IndexResult(PassageIndex):
    """Index in memory, with its inputs. `seconds` is the time of building it; None if an existing index was opened."""

    index: ApproximateIndex
    seconds: float | None

    def rank(
        self, queries: Float32[ndarray, "queries dim"], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """See `PassageIndex.rank`."""
        return self.index.search(queries, k)


def run_index(
    config: IndexConfig,
    model: ModelConfig,
    data: DataConfig,
    output: Path,
    log: Callable[[str], None],
    *,
    precision: str | None = None,
    seed: int = 0,
    split: str | None = None,
    embeddings: Path | None = None,
    calibration: Path | None = None,
) -> IndexResult:
    """Build an index and commit it to `output`, or open the existing one.

    An existing index is opened from its own files, without encoding a passage. If the passages of the data set have
    changed, it is built again.

    Args:
        precision: precision of the encoder; None for the fastest on this hardware.
        split: split with the queries of later searches, if any.
        embeddings: store of the passage embeddings that `model` wrote for this data set; by default the cache.
        calibration: file that the user names; see `current_calibration`.

    Raises:
        UserError: an error that the user can correct, such as another index at `output`. Nothing is written then.
    """
    training_split = (config.training_split or _TRAINING_SPLIT) if config.index == "roargraph" else None
    if training_split and training_split == split:
        what = f"the graph is built from the queries of {training_split}, so their recall would be too high"
        raise ConfigError(what, setting("split"), "choose another split")
    check_writable(output)
    existing = read_meta(output) if output.exists() else None
    splits = [split for split in dict.fromkeys((training_split, split)) if split]
    dataset = open_dataset(data.dataset, splits, max_bad_rows=data.max_bad_rows, run=in_processes, log=log)
    retriever = open_encoder(model, precision)
    log_prompts(retriever, dataset.name, log)
    store = open_matching_store(embeddings, model, retriever, dataset) if embeddings else None
    meta = _meta(config, model, seed, dataset, retriever, store, training_split)
    current = current_calibration(model, dataset.name, dataset.documents, log, int8=retriever.is_int8, file=calibration)
    result = partial(IndexResult, dataset=dataset, retriever=retriever, calibration=current)
    if existing:
        _check_same(existing, meta, output)
        if existing["key"] == meta["key"]:
            return result(index=_opened(output, config), seconds=None)
        log(f"{output}: {dataset.name} has changed, so the index is built again")
    store = store or embed_corpus(model, retriever, dataset)
    _check_capacity(config, len(store), store.dim, output)
    training = _queries(retriever, dataset, training_split) if training_split else None
    log(f"{model.model}: {retriever.summary()}")
    with one_writer(output, wait=True, log=log) if existing else nullcontext():
        if existing and read_meta(output)["key"] == meta["key"]:  # another command has just built this index
            return result(index=_opened(output, config), seconds=None)
        with committed_directory(output, meta, replace=output.exists()) as folder:
            vectors = write_embeddings(folder, (block for _, block in store.blocks()), (len(store), store.dim))
            ties, started = tie_order(dataset.documents.ids), perf_counter()
            log(f"{dataset.name}: building an index of {len(store):,} passages ({config.index})")
            index = build_index(vectors, config, training, seed, torch.get_num_threads(), ties)
            index = replace(index, search_size=config.search_size or index.search_size)
            seconds = perf_counter() - started
            meta |= save_index(folder, index, config.index)
    return result(index=index, seconds=seconds)


def _check_capacity(config: IndexConfig, rows: int, dim: int, output: Path) -> None:
    remedy = "use a machine with more memory" if config.index in ("flat", "ivfpq") else f"use {setting('index')} ivfpq"
    content = "the structures of the index, and the embeddings that it learns from,"
    check_memory(memory_of_building(config, rows, dim), content, remedy)
    needed = bytes_of_ann_index(config, rows, dim) + rows * (4 * dim + 8)
    check_disk(output, needed, "the files of the index")


def _opened(output: Path, config: IndexConfig) -> ApproximateIndex:
    index = read_index(output)
    return replace(index, search_size=config.search_size or index.search_size)


def _check_same(existing: dict[str, Any], meta: dict[str, Any], output: Path) -> None:
    different = [name for name, value in meta.items() if name not in ("key", "model") and existing.get(name) != value]
    if not different:
        return
    name = next((name for name in different if name != "encoder"), "encoder")
    there, here = (f"{values.get(name)}"[:40] for values in (existing, meta))
    reason = f"its {name.replace('_', ' ')} is {there}, not {here}"
    remedy = f"give another {setting('output')}, or remove this one"
    if name == "encoder":
        reason = "its model has other weights or settings"
    elif name == "precision":
        remedy = f"give {setting('precision', there)}, or another {setting('output')}"
    raise StorageError(
        f"holds another index ({existing['index']} of {existing.get('dataset')} by {existing.get('model')}): {reason}",
        str(output),
        remedy,
    )


def bytes_of_ann_index(config: IndexConfig, rows: int, dim: int) -> int:
    """Estimate the bytes of an index without its embeddings: the same number on disk and in memory."""
    vectors, halves, positions = 4 * dim, 2 * dim, 8
    neighbors = 4 * config.value("m")
    of_row = {
        "flat": 0,
        "ivf": vectors + positions,
        "ivfpq": (config.code_bytes or default_code_bytes(dim)) + positions,
        "hnsw": halves + 2 * neighbors,  # most nodes are only in the lowest layer, which has twice the degree
        "vamana": vectors + neighbors,
        "roargraph": 2 * neighbors,  # half of the slots are for edges that `connect` adds
    }[config.index]
    return rows * of_row


def memory_of_building(config: IndexConfig, rows: int, dim: int) -> int:
    """Estimate the memory for building an index: its structures, and the embeddings that are read many times."""
    points = POINTS * (config.lists or default_lists(rows))
    read_again = {"ivf": points, "ivfpq": points, "vamana": rows, "roargraph": rows}
    return bytes_of_ann_index(config, rows, dim) + 4 * dim * min(rows, read_again.get(config.index, 0))


def _queries(retriever: TextEncoder, dataset: RetrievalDataset, split: str) -> Float32[ndarray, "queries dim"]:
    positions = dataset.positives(split).queries
    if not len(positions):
        raise ConfigError(f"{dataset.name} has no query with a relevant document", split, "give another split")
    return encode_queries(retriever, dataset, positions, f"{split} queries")


def _meta(
    config: IndexConfig,
    model: ModelConfig,
    seed: int,
    dataset: RetrievalDataset,
    retriever: TextEncoder,
    store: EmbeddingStore | None,
    training_split: str | None,
) -> dict[str, Any]:
    """Return the entries of the manifest. They are known before any passage is encoded.

    Entry `key` is the digest of all inputs of the index. Argument `store` is the store that the user names, if any."""
    settings = {name: value for name, value in asdict(config).items() if name not in ("nprobe", "ef_search")}
    settings |= {"m": config.value("m"), "ef_construction": config.value("ef_construction")}
    settings |= {"nearest": config.value("nearest"), "training_split": training_split, "seed": seed}
    plan = plan_embeddings(model, retriever, dataset, "passage", "fp32")
    stored = store.plan if store else plan
    settings |= {
        "dataset": dataset.name,
        "passage_prompt": plan.prefix,
        "precision": stored.precision,
        "dtype": stored.dtype,
        "encoder": stored.encoder,
    }
    decides = [settings, dataset.documents.digest]
    if training_split:
        decides += [dataset.queries.digest, dataset.positives(training_split).queries.tolist()]
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return {**settings, "model": model.model, "key": key}


def format_answers(result: IndexResult, query: str, top: int) -> str:
    """Search for a query, and return the best passages with their scores as text."""
    return format_hits(result.search([query], top)[0])


def format_recall(result: IndexResult, split: str) -> str:
    """Measure recall against exact search, candidates and queries per second on one thread. Return a text table."""
    queries, index = _queries(result.retriever, result.dataset, split), result.index
    rows = []
    for k in CUTOFFS:
        point = evaluate_recall(index, queries, top_k(queries, index.embeddings, k, index.ties)[1], index.search_size)
        rows.append([f"{k}", f"{point.recall:.4f}", format_count(point.candidates), format_count(point.qps)])
    head = ["k", "recall of the exact k", "candidates per query", "queries/s, 1 thread"]
    return f"{len(queries):,} queries of {split}, search size {index.search_size}\n" + text_table([head, *rows], left=0)
