"""Small data sets in memory for tests of mining."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raytriever.data.dataset import Documents, Judgements, NegativeRows, Queries, RetrievalDataset
from raytriever.data.records_and_bad_rows import ORIGINS
from raytriever.retrieval.mining.candidate_search import ArrayEmbeddings, Embeddings
from raytriever.retrieval.mining.miner import MiningResult
from raytriever.retrieval.mining.mining_settings import METHODS, MiningConfig

Pairs = list[tuple[int, int]]
EVERY = MiningConfig(method=",".join(METHODS), num_negatives=3, range_max=9, sampling_strategy="random")


def dataset_of(queries: list[str], documents: list[str], **splits: Pairs) -> RetrievalDataset:
    """Return a data set in memory; query n and document n + 3 have the id `n`."""
    judgements = {}
    for split, pairs in splits.items():
        rows = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
        judgements[split] = Judgements(rows[:, 0], rows[:, 1], np.ones(len(rows), np.int64))
    return RetrievalDataset(
        "made",
        Documents([str(n - 3) for n in range(len(documents))], [""] * len(documents), documents),
        Queries([str(n) for n in range(len(queries))], queries),
        judgements,
    )


def whole_numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Return embeddings with exact dot products."""
    return rng.integers(-2, 3, (rows, 4)).astype(np.float32)


def rows_of(mined: MiningResult) -> dict[int, list[tuple[int, int]]]:
    """Return (document, rank) pairs by query."""
    rows: dict[int, list[tuple[int, int]]] = {}
    columns = (mined.table.queries, mined.table.documents, mined.table.ranks)
    for query, document, rank in zip(*(column.tolist() for column in columns), strict=True):
        rows.setdefault(query, []).append((document, rank))
    return rows


def word_dataset() -> tuple[RetrievalDataset, Embeddings]:
    """Return 60 documents of three words, 40 queries of two words, gold negatives, and embeddings."""
    rng = np.random.default_rng(5)
    words = [f"word{n}" for n in range(25)]
    documents = [" ".join(rng.choice(words, 3, replace=False)) for _ in range(60)]
    queries = [" ".join(rng.choice(words, 2, replace=False)) for _ in range(40)]
    dataset = dataset_of(queries, documents, train=[(n, int(rng.integers(60))) for n in range(40)])
    gold = NegativeRows(
        np.repeat(np.arange(40), 2),
        rng.integers(0, 60, 80),
        np.full(80, ORIGINS.index("gold")),
        np.tile([0, 1], 40),
        np.full(80, np.nan, np.float32),
    )
    of_queries, of_documents = (rng.standard_normal((rows, 16)).astype(np.float32) for rows in (40, 60))
    return replace(dataset, negatives=gold), Embeddings(of_queries, ArrayEmbeddings(of_documents))
