"""Sample of a corpus for frequent evaluations of a split's queries.

Encoding a whole corpus for every checkpoint is expensive. A sample holds all judged documents and as many others as
wanted: half of these are BM25's best results for the queries, taken rank by rank, and the rest is drawn at random.
Figures on a sample are higher than on the whole corpus, and comparable only with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from raytriever.data.dataset import Documents, Judgements, RetrievalDataset
from raytriever.mining.bm25 import Bm25Index

# Results of BM25 per query: the usual depth of the metrics.
DEPTH = 100


def sample_corpus(
    dataset: RetrievalDataset, split: str, others: int, seed: int, index_of: Callable[[RetrievalDataset], Bm25Index]
) -> RetrievalDataset:
    """Return the data set with all documents that the split judges and `others` more, in their order.

    A corpus without so many is kept whole. The result is in memory, without tokens and negatives; its queries keep
    their positions. `index_of` builds the BM25 index of a data set, and is called only if it is needed.
    """
    judged = np.unique(dataset.judgements[split].documents)
    total = len(dataset.documents)
    if total <= len(judged) + others:
        return dataset
    chosen = judged
    if others >= 2:
        ranked = _best_documents(dataset, split, index_of(dataset))
        hard = ranked[~np.isin(ranked, judged)][: others // 2]
        chosen = np.union1d(judged, hard)
    rest = np.setdiff1d(np.arange(total), chosen)
    sample = np.random.default_rng(seed).choice(rest, len(judged) + others - len(chosen), replace=False)
    return _select_documents(dataset, split, np.union1d(chosen, sample))


def _best_documents(dataset: RetrievalDataset, split: str, index: Bm25Index) -> Int64[ndarray, " documents"]:
    """Return BM25's results for the split's queries, each document once: all first ranks, then all second ranks."""
    queries = np.unique(dataset.judgements[split].queries)
    _, documents = index.search([dataset.queries.texts[int(query)] for query in queries], DEPTH)
    by_rank = documents.T.reshape(-1)
    _, first = np.unique(by_rank, return_index=True)
    return by_rank[np.sort(first)]


def _select_documents(
    dataset: RetrievalDataset, split: str, positions: Int64[ndarray, " documents"]
) -> RetrievalDataset:
    """Return the data set with these documents only; positions are ascending."""
    documents, rows = dataset.documents, dataset.judgements[split]
    ids, titles, texts = (
        [column[position] for position in positions.tolist()]
        for column in (documents.ids, documents.titles, documents.texts)
    )
    moved = Judgements(
        rows.queries, np.searchsorted(positions, rows.documents).astype(np.int64), rows.scores, rows.sources, rows.ranks
    )
    return replace(
        dataset,
        documents=Documents(ids, titles, texts),
        judgements={split: moved},
        tokens=None,
        negatives=None,
        location=None,
    )
