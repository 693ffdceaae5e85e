"""Candidates of each query: the merged results of several retrievers.

This is stage 1 of section 4.2 of *Training dense retrievers with multiple positive passages*.

Merged by reciprocal rank fusion, a document's sum of 1 / (60 + rank) over the retrievers that found it (Cormack,
Clarke and Buettcher 2009): their scores have no common scale, and what several found stands in front. It decides
nothing but the order in which the model is shown them. Left out are the document with the query's own id, as BEIR has
it, and of documents that say the same all but the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from numpy import ndarray

from raytriever.annotation.config import BM25, DENSE
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.run_files import read_run
from raytriever.encoding.corpus import embed_corpus, open_matching_store
from raytriever.encoding.encode import encode_texts
from raytriever.encoding.loading import load_for_encoding
from raytriever.index.exact.search import tie_order
from raytriever.mining.analyser import Analysis
from raytriever.mining.bm25 import Bm25Index
from raytriever.mining.filters import normalise
from raytriever.models.config import ModelConfig
from raytriever.models.precision import choose_precision
from raytriever.search.exact import search_store

_FUSION = 60
Ranking = Int64[ndarray, "queries depth"]


def find_candidates(
    dataset: RetrievalDataset,
    queries: Sequence[int],
    retrievers: Sequence[str],
    depth: int,
    model: ModelConfig,
    precision: str | None,
    embeddings: Path | None,
    say: Callable[[str], None],
) -> list[list[int]]:
    """For each query the documents that any retriever has among its first `depth`, best first.

    Args:
        dataset: the corpus and the queries.
        queries: positions.
        retrievers: `bm25`, `dense`, or the place of a run.
        model, precision: the encoder of `dense`.
        embeddings: its embeddings of the passages; made or found in the cache where None.
        say: called with a line for each step that takes long.

    Raises:
        UserError: a run, an encoder or embeddings that cannot be used.
    """
    # Runs first: a mistake in a file shows before anything long is done.
    rankings = {name: read_run(name, dataset, queries, depth) for name in retrievers if name not in (BM25, DENSE)}
    if BM25 in retrievers:
        say(f"{dataset.name}: ranking with BM25")
        if warning := Analysis.of(dataset.passages()).warning:
            say(warning)
        rankings[BM25] = _by_bm25(dataset, queries, depth)
    if DENSE in retrievers:
        rankings[DENSE] = _by_encoder(dataset, queries, depth, model, precision, embeddings, say)
    merged = []
    passages = dataset.passages()
    for row, query in enumerate(queries):
        ranked = fused([rankings[name][row] for name in retrievers])
        own = dataset.queries.ids[query]
        apart: dict[str, int] = {}
        for document in ranked:
            if dataset.documents.ids[document] != own:
                apart.setdefault(normalise(passages[document]), document)
        merged.append(list(apart.values()))
    return merged


def fused(rankings: Iterable[Int64[ndarray, " depth"]]) -> list[int]:
    """Documents by the sum of 1 / (60 + rank), ranks from 1; of equal sums the smaller position first. -1 is none."""
    sums: dict[int, float] = {}
    for ranking in rankings:
        for rank, document in enumerate(ranking[ranking >= 0].tolist(), start=1):
            sums[document] = sums.get(document, 0.0) + 1 / (_FUSION + rank)
    return sorted(sums, key=lambda document: (-sums[document], document))


def _by_bm25(dataset: RetrievalDataset, queries: Sequence[int], depth: int) -> Ranking:
    scores, found = Bm25Index(dataset.passages()).search([dataset.queries.texts[query] for query in queries], depth)
    found[scores <= 0] = -1  # shares no term with the query
    return found


def _by_encoder(
    dataset: RetrievalDataset,
    queries: Sequence[int],
    depth: int,
    model: ModelConfig,
    precision: str | None,
    embeddings: Path | None,
    say: Callable[[str], None],
) -> Ranking:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = choose_precision(precision, device)
    retriever = load_for_encoding(model, chosen, device)
    documents = open_matching_store(embeddings, model, retriever, dataset) if embeddings else None
    say(f"{dataset.name}: encoding with {model.model} ({chosen} on {device})")
    documents = documents or embed_corpus(model, retriever, dataset)
    vectors = encode_texts(retriever, [dataset.queries.texts[query] for query in queries], "query", "queries")
    _, found = search_store(documents, vectors, depth, tie_order(dataset.documents.ids))
    return np.asarray(found, dtype=np.int64)
