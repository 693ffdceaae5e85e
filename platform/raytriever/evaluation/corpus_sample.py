"""Sample of a corpus on which the queries of a split can be evaluated again and again.

Encoding a whole corpus for every checkpoint is expensive. The sample holds all judged documents and others: half of
them what BM25 ranks best for the queries, rank by rank, the rest drawn at random. Figures on a sample are higher than
on the whole corpus, and comparable with each other only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import Documents, Judgements, RetrievalDataset
from raytriever.mining.bm25 import Bm25Index

# As deep as the metrics usually look.
DEPTH = 100


def sample_corpus(
    dataset: RetrievalDataset, split: str, others: int, seed: int, index_of: Callable[[RetrievalDataset], Bm25Index]
) -> RetrievalDataset:
    """The data set with all documents that the split judges and `others` further ones, in their order.

    Args:
        dataset: opened with the split.
        split: whose queries are searched.
        others: documents beside the judged ones; where there are no more than these, all of them are kept.
        seed: fixes those that are drawn.
        index_of: makes the BM25 index of a data set; asked only where it is needed.

    Returns:
        A data set in memory, without tokens and answers' passages changed; queries keep their positions.
    """
    judged = np.unique(dataset.judgements[split].documents)
    total = len(dataset.documents)
    if total <= len(judged) + others:
        return dataset
    chosen = judged
    if others >= 2:
        ranked = _best(dataset, split, index_of(dataset))
        hard = ranked[~np.isin(ranked, judged)][: others // 2]
        chosen = np.union1d(judged, hard)
    rest = np.setdiff1d(np.arange(total), chosen)
    drawn = np.random.default_rng(seed).choice(rest, len(judged) + others - len(chosen), replace=False)
    return _only(dataset, split, np.union1d(chosen, drawn))


def _best(dataset: RetrievalDataset, split: str, index: Bm25Index) -> Int64[ndarray, " documents"]:
    """What BM25 finds for the split's queries: all first ranks, then all second ones; each document once."""
    queries = np.unique(dataset.judgements[split].queries)
    _, found = index.search([dataset.queries.texts[int(query)] for query in queries], DEPTH)
    flat = found.T.reshape(-1)
    _, first = np.unique(flat, return_index=True)
    return flat[np.sort(first)]


def _only(dataset: RetrievalDataset, split: str, kept: Int64[ndarray, " documents"]) -> RetrievalDataset:
    """The data set with these documents alone, ascending."""
    documents, rows = dataset.documents, dataset.judgements[split]
    ids, titles, texts = (
        [column[place] for place in kept.tolist()] for column in (documents.ids, documents.titles, documents.texts)
    )
    moved = Judgements(
        rows.queries, np.searchsorted(kept, rows.documents).astype(np.int64), rows.scores, rows.sources, rows.ranks
    )
    return replace(
        dataset,
        documents=Documents(ids, titles, texts),
        judgements={split: moved},
        tokens=None,
        negatives=None,
        place=None,
    )
