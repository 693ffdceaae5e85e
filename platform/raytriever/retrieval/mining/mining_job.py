"""Mining job: it checks all inputs, encodes if a method needs embeddings, mines, and writes the table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from raytriever.core.errors import ConfigError, DataError, StorageError, setting
from raytriever.core.store.capacity import check_disk
from raytriever.core.store.commit import remove
from raytriever.core.store.disk import check_writable
from raytriever.core.store.unfinished_pieces import folder_of_blocks
from raytriever.core.terminal import text_table
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hard_negatives import ROW_BYTES, write_negatives
from raytriever.data.hashed_ids import key_of
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.models.cross_encoder import CrossEncoder
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, open_matching_store
from raytriever.retrieval.encoding.embedding_store import EmbeddingStore
from raytriever.retrieval.encoding.encode_texts import encode_queries
from raytriever.retrieval.encoding.load_for_encoding import log_prompts, open_encoder
from raytriever.retrieval.mining.bm25_analyzer import Analysis
from raytriever.retrieval.mining.candidate_search import Embeddings
from raytriever.retrieval.mining.filters import REASONS
from raytriever.retrieval.mining.miner import REPEATED, MiningResult, check_data, mine
from raytriever.retrieval.mining.mining_settings import MiningConfig


def run_mining(
    mining: MiningConfig,
    model: ModelConfig,
    data: DataConfig,
    output: Path,
    log: Callable[[str], None],
    *,
    split: str = "train",
    precision: str | None = None,
    seed: int = 0,
    round: int = 0,
    embeddings: Path | None = None,
) -> tuple[MiningResult, str | None]:
    """Mine negatives and commit the table to `output`, a new path. `check_options` must have checked the settings.

    Args:
        model: encoder, used if a method needs embeddings.
        split: split whose queries get negatives.
        precision: precision of the encoder; None for the fastest on this hardware.
        seed, round: two numbers on which all random numbers depend; the table records the round.
        embeddings: store of the passage embeddings that `model` wrote for this data set; by default the cache.

    Returns:
        The result, and a line about quarantined rows if there are any.
    """
    if embeddings and not mining.needs_embeddings:
        reason = f"{setting('method')} {mining.method} needs no embeddings"
        raise ConfigError(reason, setting("embeddings"), f"leave it out, or add dense to {setting('method')}")
    if output.exists():
        raise StorageError("already exists", str(output), f"give another {setting('output')}, or remove this one")
    check_writable(output)
    device = default_device()
    chosen = choose_precision(precision, device)
    judge = None
    if mining.judge:  # cross-encoders do not support int8
        judge = CrossEncoder(mining.judge, device, "fp32" if chosen == "int8" else chosen)
    dataset = open_all_splits(
        data.dataset,
        [split],
        max_bad_rows=data.max_bad_rows,
        bm25_language=data.bm25_language,
        run=in_processes,
        log=log,
    )
    check_data(dataset, split, mining)
    if "bm25" in mining.methods:
        for line in Analysis.of(dataset.documents).notes:
            log(line)
    rows = len(dataset.positives(split).queries) * mining.num_negatives * len(mining.methods)
    check_disk(output, rows * ROW_BYTES, "the negatives")
    encoded = documents = None
    if mining.needs_embeddings:
        retriever = open_encoder(model, chosen, device)
        log_prompts(retriever, dataset.name, log)
        documents = open_matching_store(embeddings, model, retriever, dataset) if embeddings else None
        what = "queries" if documents else "queries and passages"
        log(f"{model.model}: {retriever.summary()}")
        log(f"{dataset.name}: encoding {what} with {model.model} ({chosen} on {device})")
        queries = dataset.positives(split).queries
        documents = documents or embed_corpus(model, retriever, dataset)
        encoded = Embeddings(encode_queries(retriever, dataset, queries), documents)
    decides = [split, asdict(mining), seed, round, *_digests(dataset, encoded, documents, judge)]
    finished = folder_of_blocks(decides, dataset)
    mined = mine(dataset, split, mining, embeddings=encoded, judge=judge, seed=seed, round=round, finished=finished)
    if not len(mined.table):
        raise DataError(f"no negative is left; {_summary(mined)}", dataset.name, "loosen the filters that removed them")
    meta = {
        "kind": "negatives",
        "split": split,
        "settings": asdict(mining),
        "model": model.model if encoded else None,
        "model_digest": documents.plan.model_digest if documents else None,
        "seed": seed,
        "round": round,
        **mined.meta(),
    }
    write_negatives(output, mined.table, dataset, meta)
    remove(finished)
    return mined, str(dataset.quarantine) if dataset.quarantine.total else None


def _digests(
    dataset: RetrievalDataset,
    embeddings: Embeddings | None,
    documents: EmbeddingStore | None,
    judge: CrossEncoder | None,
) -> list[Any]:
    rows = hashlib.sha256()
    for column in vars(dataset.negatives).values() if dataset.negatives else ():
        rows.update(np.ascontiguousarray(column).data)
    if dataset.answers:
        rows.update(np.ascontiguousarray(dataset.answers.queries).data)
        for text in dataset.answers.texts:
            rows.update(key_of(str(text)))
    return [
        dataset.digest,
        rows.hexdigest(),
        Analysis.of(dataset.documents).analyzer.settings,
        documents.plan.key if documents else None,
        hashlib.sha256(np.ascontiguousarray(embeddings.queries).data).hexdigest() if embeddings else None,
        judge.digest() if judge else None,
    ]


def format_counts(mined: MiningResult) -> str:
    """Format the numbers of all, removed (for each reason) and kept candidates as text, with one column per method."""
    reasons = {name for counts in mined.counts.values() for name in counts}
    rows = ["candidates", *(name for name in (*REASONS[1:], REPEATED) if name in reasons), "kept"]
    cells = [[name, *(f"{counts.get(name, 0):,}" for counts in mined.counts.values())] for name in rows]
    return text_table([["", *mined.counts], *cells], left=0)


def _summary(mined: MiningResult) -> str:
    return "; ".join(
        f"{method}: {', '.join(f'{name} {count:,}' for name, count in counts.items())}"
        for method, counts in mined.counts.items()
    )
