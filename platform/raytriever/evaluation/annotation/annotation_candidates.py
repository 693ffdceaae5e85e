"""Queries to annotate, and the candidates of each: the merged results of several retrievers.

This is stage 1 of section 4.2 of *Training dense retrievers with multiple positive passages*.

Results are merged by reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): the score of a document is the sum of
1 / (60 + rank) over the retrievers that returned it. Ranks are merged because the scores of different retrievers have
no common scale. Documents that several retrievers found come first. The fusion only decides the order in which the
model sees the passages. The document with the id of the query is left out, as in BEIR. If several documents have equal
texts, only the first is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.core.errors import DataError, setting
from raytriever.data.data_settings import DataConfig
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.formats.trec_runs import read_run
from raytriever.data.hashed_ids import normalize
from raytriever.data.prepare.open_dataset import open_all_splits
from raytriever.data.prepare.prepare_dataset import in_processes
from raytriever.evaluation.annotation.annotation_settings import BM25, DENSE
from raytriever.models.device_and_precision import choose_precision, default_device
from raytriever.models.model_settings import ModelConfig
from raytriever.retrieval.encoding.embed_corpus import embed_corpus, open_matching_store
from raytriever.retrieval.encoding.encode_texts import encode_queries
from raytriever.retrieval.encoding.load_for_encoding import open_encoder
from raytriever.retrieval.index.exact_top_k import tie_order
from raytriever.retrieval.mining.bm25 import Bm25Index
from raytriever.retrieval.mining.bm25_analyzer import Analysis
from raytriever.retrieval.search.exact_search import search_store

_FUSION = 60


def open_checked(data: DataConfig, report: Callable[[str], None]) -> RetrievalDataset:
    """Open a data set with the judgements of all its splits, because the output contains all of them. Raise `DataError`
    if the data set cannot be read, or has no documents or no queries."""
    dataset = open_all_splits(
        data.dataset, [], max_bad_rows=data.max_bad_rows, bm25_language=data.bm25_language, run=in_processes, log=report
    )
    for kind, rows in (("documents", dataset.documents), ("queries", dataset.queries)):
        if not len(rows):
            raise DataError(f"contains no {kind}", data.dataset, f"give a data set with {kind}")
    return dataset


def choose_queries(dataset: RetrievalDataset, split: str, most: int | None) -> list[int]:
    """Choose at most `most` queries: those with judgements in the split, or those without any judgement if the split
    has none. Queries that are known to be unanswerable are never chosen.

    Queries are ordered by the SHA-256 of their ids, so a larger job begins with the queries of a smaller job."""
    none, unanswerable = np.zeros(0, np.int64), list(dataset.unanswerable.values())
    if len(dataset.judgements.get(split, ())):
        chosen = np.setdiff1d(dataset.judgements[split].queries, np.concatenate([none, *unanswerable])).tolist()
    else:
        everything = np.arange(len(dataset.queries))
        judged = [rows.queries for rows in dataset.judgements.values()]
        chosen = np.setdiff1d(everything, np.concatenate([none, *judged, *unanswerable])).tolist()
    if not chosen:
        splits = ", ".join(dataset.judgements) or "none"
        what = f"has no split {split!r} and no query without judgements"
        raise DataError(what, dataset.name, f"choose one of its splits: {splits}")
    ids = dataset.queries.ids
    return sorted(chosen, key=lambda query: hashlib.sha256(ids[query].encode()).digest())[:most]


def find_candidates(
    dataset: RetrievalDataset,
    queries: Sequence[int],
    retrievers: Sequence[str],
    depth: int,
    model: ModelConfig,
    precision: str | None,
    embeddings: Path | None,
    report: Callable[[str], None],
) -> list[list[int]]:
    """Return, for each query, the documents that at least one retriever ranks among its best `depth`, best first.

    Retrievers are `bm25`, `dense`, or the path of a run. `model` and `precision` describe the encoder of `dense`.
    `embeddings` is the path of the passage embeddings; by default they are in the cache, or are computed."""
    # Read the runs first, so that an error in a file shows before any slow step.
    rankings = {name: read_run(name, dataset, queries, depth) for name in retrievers if name not in (BM25, DENSE)}
    if BM25 in retrievers:
        report(f"{dataset.name}: ranking with BM25")
        for line in Analysis.of(dataset.documents).notes:
            report(line)
        texts = [dataset.queries.texts[query] for query in queries]
        scores, documents = Bm25Index.of(dataset.documents).search(texts, depth)
        documents[scores <= 0] = -1  # these documents share no term with the query
        rankings[BM25] = documents
    if DENSE in retrievers:
        device = default_device()
        dtype = choose_precision(precision, device)
        retriever = open_encoder(model, dtype, device)
        store = open_matching_store(embeddings, model, retriever, dataset) if embeddings else None
        report(f"{dataset.name}: encoding with {model.model} ({dtype} on {device})")
        store = store or embed_corpus(model, retriever, dataset)
        vectors = encode_queries(retriever, dataset, queries)
        _, rankings[DENSE] = search_store(store, vectors, depth, tie_order(dataset.documents.ids))
    merged = []
    passages = dataset.passages()
    for row, query in enumerate(queries):
        ranked = fuse([rankings[name][row] for name in retrievers])
        own = dataset.queries.ids[query]
        distinct: dict[str, int] = {}
        for document in ranked:
            if dataset.documents.ids[document] != own:
                distinct.setdefault(normalize(passages[document]), document)
        merged.append(list(distinct.values()))
    if not any(merged):
        what = f"has no candidate passage for any of {len(queries):,} queries"
        raise DataError(what, dataset.name, f"add sources to {setting('candidates')}")
    return merged


def fuse(rankings: Iterable[Int64[ndarray, " depth"]]) -> list[int]:
    """Sort documents by the sum of 1 / (60 + rank). Ranks start at 1. Position breaks ties. Skip -1."""
    sums: dict[int, float] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking[ranking >= 0].tolist(), start=1):
            sums[document] = sums.get(document, 0.0) + 1 / (_FUSION + rank)
    return sorted(sums, key=lambda document: (-sums[document], document))
