"""BM25 over passages: the baseline of evaluations and the default source of hard negatives.

A score is the sum of a document's weights (`postings`) in the order of the query's terms, in float32. It equals the
score of bm25s to the last bit. Ties are broken by position. A query's ranking depends neither on the other queries nor
on the number of threads.

A ranking consists of 64-bit keys. The high half is the score, which is never negative, and the low half is the
position, counted from the end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from jaxtyping import Bool, Float32, Int64
from numpy import ndarray

from raytriever.core.machine import usable_cores
from raytriever.core.progress import activity
from raytriever.data.dataset import Documents, Passages
from raytriever.data.prepare.corpus_tokenization import flat
from raytriever.retrieval.mining.bm25_analyzer import ENGLISH_ANALYZER, Analyzer
from raytriever.retrieval.mining.postings import Postings

# Largest number of documents of a corpus whose postings are kept in memory. They take up to 75 MB for passages.
IN_MEMORY = 1 << 17
_ROWS_AT_ONCE = 128  # number of queries that a thread ranks in one task
_LAST = 0xFFFF_FFFF
_INT64 = np.dtype(np.int64)


class Bm25Index:
    """BM25 index of at least one text. Results identify texts by position."""

    def __init__(self, texts: Sequence[str], analyzer: Analyzer = ENGLISH_ANALYZER) -> None:
        self._analyzer = analyzer
        with activity("indexing the documents for BM25"):
            self._postings = Postings.of(texts, analyzer)

    @classmethod
    def of(cls, documents: Documents) -> Bm25Index:
        """Return the index of a corpus, analyzed in its language. The postings of a large corpus are cached for all
        commands."""
        if len(documents) <= IN_MEMORY:
            return cls(Passages(documents), Analyzer.of(documents))
        analyzer = Analyzer.of(documents)
        with activity("indexing the documents for BM25"):
            return cls._from(Postings.cached(documents, analyzer), analyzer)

    @classmethod
    def _from(cls, postings: Postings, analyzer: Analyzer) -> Bm25Index:
        index = cls.__new__(cls)
        index._postings, index._analyzer = postings, analyzer
        return index

    def __len__(self) -> int:
        return self._postings.size

    def search(
        self, queries: Sequence[str], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return scores and positions of the `min(k, len(self))` best documents of each query, best first.

        Among equal scores the smaller position comes first. Documents that share no term with the query score 0
        and fill the remaining columns."""
        k = min(k, len(self))
        keys = np.zeros((len(queries), k), np.uint64)
        if k:
            self._in_threads(_rank, queries, keys)
        keys = np.sort(keys, axis=1)[:, ::-1]
        scores = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
        positions = _LAST - (keys & np.uint64(_LAST)).astype(np.int64)
        for row, count in enumerate(np.count_nonzero(keys, axis=1)):
            if count < k:
                positions[row, count:] = np.setdiff1d(np.arange(k), positions[row, :count])[: k - count]
        return scores, positions

    def scores_of(
        self, queries: Sequence[str], documents: Int64[ndarray, "queries any"]
    ) -> Float32[ndarray, "queries any"]:
        """Return the scores of the given documents for each query; NaN for the position -1."""
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        self._in_threads(_gather, queries, np.ascontiguousarray(documents), scores)
        return scores

    def scores(self, query: str) -> Float32[ndarray, " documents"]:
        """Return the score of every document for one query."""
        return self.scores_of([query], np.arange(len(self))[None, :])[0]

    @activity("searching with BM25")
    def _in_threads(self, kernel: Any, queries: Sequence[str], *rows: ndarray) -> None:
        """Run a kernel, which releases the GIL, over chunks of queries and the matching rows of arrays."""
        postings, vocabulary = self._postings, self._postings.vocabulary
        terms = [
            [vocabulary[term] for term in words if term in vocabulary] for words in self._analyzer.analyze(queries)
        ]

        def fill(start: int) -> None:
            chunk = terms[start : start + _ROWS_AT_ONCE]
            scores = np.zeros(len(self), np.float32)
            some = (row[start : start + _ROWS_AT_ONCE] for row in rows)
            kernel(postings.weights, postings.documents, postings.starts, *flat(chunk, _INT64), scores, *some)

        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(fill, range(0, len(queries), _ROWS_AT_ONCE)))


@numba.njit(cache=True, nogil=True)
def _rank(weights, documents, starts, terms, offsets, scores, keys):  # type: ignore[no-untyped-def]
    """Fill each row of `keys` `[queries, k]`, which must be zeros, with the highest keys of the documents that have a
    term of the query.

    The terms of query q are `terms[offsets[q]:offsets[q + 1]]`; a repeated term is added each time. The postings of
    term t are at `starts[t]:starts[t + 1]`. `scores` must be zeros, one for each document of the corpus."""
    for query in range(len(keys)):
        own, heap = terms[offsets[query] : offsets[query + 1]], keys[query]
        _add(weights, documents, starts, own, scores)
        for term in own:
            for posting in range(starts[term], starts[term + 1]):
                document = documents[posting]
                score = np.float32(scores[document])
                scores[document] = 0  # so that the document enters the heap only once
                key = (np.uint64(score.view(np.uint32)) << np.uint64(32)) | np.uint64(_LAST - document)
                if score > 0 and key > heap[0]:
                    _replace_lowest(heap, key)


@numba.njit(cache=True, nogil=True)
def _gather(weights, documents, starts, terms, offsets, scores, wanted, gathered):  # type: ignore[no-untyped-def]
    """Fill `gathered` with the scores of the documents `wanted` `[queries, any]`; skip entries of -1. See `_rank`."""
    for query in range(len(wanted)):
        own = terms[offsets[query] : offsets[query + 1]]
        _add(weights, documents, starts, own, scores)
        for column in range(wanted.shape[1]):
            if wanted[query, column] >= 0:
                gathered[query, column] = scores[wanted[query, column]]
        for term in own:
            for posting in range(starts[term], starts[term + 1]):
                scores[documents[posting]] = 0


@numba.njit(cache=True, nogil=True)
def _add(weights, documents, starts, terms, scores):  # type: ignore[no-untyped-def]
    for term in terms:
        for posting in range(starts[term], starts[term + 1]):
            scores[documents[posting]] += weights[posting]


@numba.njit(cache=True, nogil=True)
def _replace_lowest(heap, key):  # type: ignore[no-untyped-def]
    parent = 0
    while 2 * parent + 1 < len(heap):
        child = 2 * parent + 1
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[parent] = heap[child]
        parent = child
    heap[parent] = key


def compare_best(
    index: Bm25Index,
    queries: Sequence[str],
    best: Int64[ndarray, " queries"],
    left_out: Sequence[Int64[ndarray, " any"]] | None = None,
) -> tuple[Float32[ndarray, "queries 3"], Bool[ndarray, " queries"]]:
    """Compare BM25 with the best document that another system found for each query.

    Args:
        best: position of the document that the other system found; -1 for none.
        left_out: positions of the documents to leave out of the search, for each query.

    Returns:
        For each query, three BM25 scores: the highest, the second highest, and that of the other system's document,
        each 0 if there is none. Then, for each query, whether both systems found the same document.
    """
    most = max((len(documents) for documents in left_out), default=0) if left_out else 0
    scores, found = index.search(queries, 2 + most)
    if left_out:
        is_out = np.stack([np.isin(row, documents) for row, documents in zip(found, left_out, strict=True)])
        order = np.argsort(is_out, axis=1, kind="stable")
        scores = np.take_along_axis(np.where(is_out, 0, scores), order, 1)
        found = np.take_along_axis(found, order, 1)
    bm25 = np.zeros((len(queries), 3), np.float32)
    bm25[:, : min(2, scores.shape[1])] = scores[:, :2]
    bm25[:, 2] = np.nan_to_num(index.scores_of(queries, best[:, None])[:, 0])
    return bm25, (found[:, 0] == best) & (bm25[:, 0] > 0)
