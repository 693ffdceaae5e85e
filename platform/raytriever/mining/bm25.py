"""BM25 over passages: baseline of the evaluation tables and first source of hard negatives.

`analyser` defines the terms, `postings` the weights, and `top_documents` ranks. Scores equal those of bm25s to the last
bit. Ties are broken by position. A query's ranking depends neither on the other queries nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.dataset import Documents, Passages
from raytriever.machine import usable_cores
from raytriever.mining.analyser import ENGLISH_ANALYSER, Analyser
from raytriever.mining.postings import Postings
from raytriever.mining.top_documents import FEW_PAIRS, gather, gather_all, rank, rank_all

# Documents of a corpus whose postings are kept in memory: those of passages take up to 50 MB.
IN_MEMORY = 1 << 17
# Queries of one task: enough to share postings in the processor's cache, few enough to share out.
_CHUNK = 256


class Bm25Index:
    """BM25 index of texts.

    Args:
        texts: the passages, at least one; results identify them by their positions in this sequence.
        analyser: of their language.
    """

    def __init__(self, texts: Sequence[str], analyser: Analyser = ENGLISH_ANALYSER) -> None:
        self._analyser = analyser
        with activity("indexing the documents for BM25"):
            self._postings = Postings.of(texts, analyser)

    @classmethod
    def of(cls, documents: Documents) -> Bm25Index:
        """Return the index of a corpus in its language, in memory, or of a large one in the cache for all commands.

        Raises:
            DataError: processes that analyse texts die.
            StorageError: the cache cannot be written.
        """
        if len(documents) <= IN_MEMORY:
            return cls(Passages(documents), Analyser.of(documents))
        index = cls.__new__(cls)
        index._analyser = Analyser.of(documents)
        with activity("indexing the documents for BM25"):
            index._postings = Postings.cached(documents, index._analyser)
        return index

    def __len__(self) -> int:
        return self._postings.size

    def search(
        self, queries: Sequence[str], k: int
    ) -> tuple[Float32[ndarray, "queries k"], Int64[ndarray, "queries k"]]:
        """Return the `min(k, len(self))` best documents of each query, best first.

        Among equal scores the smaller position comes first. Documents that share no term with the query score 0
        and fill the remaining columns.

        Returns:
            Scores and positions.
        """
        k = min(k, len(self))
        scores = np.zeros((len(queries), k), dtype=np.float32)
        positions = np.zeros((len(queries), k), dtype=np.int64)
        work = rank_all if self._has_few_pairs(queries) else rank
        self._in_threads(partial(work, *self._arrays, self._postings.largest), queries, scores, positions)
        return scores, positions

    def scores_of(
        self, queries: Sequence[str], documents: Int64[ndarray, "queries any"]
    ) -> Float32[ndarray, "queries any"]:
        """Return the scores of the passed documents for each query, NaN for a position of -1."""
        scores = np.full(documents.shape, np.nan, dtype=np.float32)
        work = gather_all if self._has_few_pairs(queries) else gather
        self._in_threads(partial(work, *self._arrays), queries, np.ascontiguousarray(documents), scores)
        return scores

    def scores(self, query: str) -> Float32[ndarray, " documents"]:
        """Return the score of every document for one query."""
        return self.scores_of([query], np.arange(len(self))[None, :])[0]

    def _has_few_pairs(self, queries: Sequence[str]) -> bool:
        return len(self) <= IN_MEMORY and len(self) * len(queries) <= FEW_PAIRS

    @property
    def _arrays(self) -> tuple[ndarray, ndarray, ndarray]:
        return self._postings.weights, self._postings.documents, self._postings.starts

    @activity("searching with BM25")
    def _in_threads(self, work: Callable[..., None], queries: Sequence[str], first: ndarray, second: ndarray) -> None:
        """Run a function over chunks of queries in threads; a compiled one releases the interpreter's lock."""
        vocabulary = self._postings.vocabulary
        terms = [
            [vocabulary[term] for term in words if term in vocabulary] for words in self._analyser.analyse(queries)
        ]

        def fill(start: int) -> None:
            chunk = terms[start : start + _CHUNK]
            offsets = np.concatenate([[0], np.cumsum([len(each) for each in chunk])]).astype(np.int64)
            flat = np.array([term for each in chunk for term in each], dtype=np.int64)
            rows = slice(start, start + _CHUNK)
            work(flat, offsets, len(self), first[rows], second[rows])

        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(fill, range(0, len(queries), _CHUNK)))
