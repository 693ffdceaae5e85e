"""BM25 over passages: the yardstick of the tables, and the first source of hard negatives.

bm25s weighs the terms when the index is built (Lu 2024, arXiv:2407.03618; Robertson & Zaragoza 2009); `analyser` says
what the terms are. The ranking is compiled (`bm25_compiled`), its ties broken by position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import bm25s
import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.negatives.analyser import analyse
from raytriever.negatives.bm25_compiled import pick, rank

K1, B = 0.9, 0.4
# Queries of one piece of work: enough to keep a thread busy, few enough to share out.
_CHUNK = 256


class Bm25Index:
    """An index of texts.

    Args:
        texts: the passages, at least one; results name them by their positions here.
    """

    @activity("indexing the documents for BM25")
    def __init__(self, texts: Sequence[str]) -> None:
        self._size = len(texts)
        tokens = analyse(texts, ids=True)
        self._vocabulary: dict[str, int] = tokens.vocab
        self._postings = (np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64))
        # bm25s cannot index texts without a single term; nothing can match them either.
        if any(tokens.ids):
            index = bm25s.BM25(k1=K1, b=B)
            index.index(tokens, show_progress=False)
            self._postings = tuple(index.scores[name] for name in ("data", "indices", "indptr"))
        else:
            self._vocabulary = {}

    def __len__(self) -> int:
        return self._size

    def search(
        self, queries: Sequence[str], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """The `min(k, len(self))` best documents of each query, best first.

        Of equal scores the smaller position comes first. Documents that share no term with the query score 0
        and fill the places that are left.

        Returns:
            Their scores and their positions.
        """
        k = min(k, self._size)
        scores = np.zeros((len(queries), k), dtype=np.float32)
        positions = np.zeros((len(queries), k), dtype=np.int64)
        self._in_threads(rank, queries, scores, positions)
        return scores, positions

    def scores_of(
        self, queries: Sequence[str], documents: Int64[ndarray, "queries any"]
    ) -> Float32[ndarray, "queries any"]:
        """The scores of given documents for each query, NaN where a position is -1."""
        found = np.full(documents.shape, np.nan, dtype=np.float32)
        self._in_threads(pick, queries, np.ascontiguousarray(documents), found)
        return found

    def scores(self, query: str) -> Float32[ndarray, " documents"]:
        """The score of every document for one query."""
        return self.scores_of([query], np.arange(self._size)[None, :])[0]

    @activity("searching with BM25")
    def _in_threads(self, work: Callable[..., None], queries: Sequence[str], first: ndarray, second: ndarray) -> None:
        """Let compiled work fill its rows, some queries in each thread; it holds no lock of the interpreter."""
        terms = [
            [self._vocabulary[term] for term in found if term in self._vocabulary]
            for found in (analyse(queries, ids=False) if queries else [])
        ]

        def fill(start: int) -> None:
            mine = terms[start : start + _CHUNK]
            offsets = np.concatenate([[0], np.cumsum([len(each) for each in mine])]).astype(np.int64)
            flat = np.array([term for each in mine for term in each], dtype=np.int64)
            rows = slice(start, start + _CHUNK)
            work(*self._postings, flat, offsets, self._size, first[rows], second[rows])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(fill, range(0, len(queries), _CHUNK)))
