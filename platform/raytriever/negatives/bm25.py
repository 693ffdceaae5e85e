"""BM25 over passages: the yardstick of the tables, and the first source of hard negatives.

bm25s weighs the terms when the index is built (Lu 2024, arXiv:2407.03618; Robertson & Zaragoza 2009): English
stop words out, Snowball stems. Here are the ranking, its ties broken by position, and the mining.
"""

from __future__ import annotations

from collections.abc import Sequence

import bm25s
import numpy as np
import Stemmer
from jaxtyping import Float32, Int64
from numpy import ndarray

K1, B = 0.9, 0.4
_CHUNK = 1024


class Bm25Index:
    """An index of texts.

    Args:
        texts: the passages, at least one; results name them by their positions here.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._size = len(texts)
        self._stemmer = Stemmer.Stemmer("english")
        tokens = self._tokenize(texts, ids=True)
        self._vocabulary: dict[str, int] = tokens.vocab
        self._index = bm25s.BM25(k1=K1, b=B)
        # bm25s cannot index texts without a single term; nothing can match them either.
        if any(tokens.ids):
            self._index.index(tokens, show_progress=False)

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
        for row, terms in enumerate(self._tokenize(queries, ids=False)):
            of_all = self._scores(terms)
            positions[row] = top_positions(of_all, k)
            scores[row] = of_all[positions[row]]
        return scores, positions

    def scores(self, query: str) -> Float32[ndarray, " documents"]:
        """The score of every document for one query."""
        return self._scores(self._tokenize([query], ids=False)[0])

    def _scores(self, terms: list[str]) -> Float32[ndarray, " documents"]:
        known = [self._vocabulary[term] for term in terms if term in self._vocabulary]
        if not known:
            return np.zeros(self._size, dtype=np.float32)
        return self._index.get_scores_from_ids(known)

    def _tokenize(self, texts: Sequence[str], ids: bool) -> bm25s.tokenization.Tokenized:
        return bm25s.tokenize(texts, stopwords="en", stemmer=self._stemmer, return_ids=ids, show_progress=False)


def top_positions(scores: Float32[ndarray, " documents"], k: int) -> Int64[ndarray, " k"]:
    """The positions of the `k` highest scores, by score, then by position."""
    if k == 0:
        return np.zeros(0, dtype=np.int64)
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    # Everything above the k-th score, then as many of its equals as there is room for, in ascending position.
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    above = above[np.argsort(-scores[above], kind="stable")]
    return np.concatenate([above, equal[: k - len(above)]])


def mine(
    index: Bm25Index,
    texts: Sequence[str],
    queries: Int64[ndarray, " queries"],
    offsets: Int64[ndarray, " queries+1"],
    documents: Int64[ndarray, " positives"],
    depth: int,
) -> Int64[ndarray, "texts depth"]:
    """The documents BM25 ranks highest without their being relevant.

    Args:
        index: of the whole corpus.
        texts: all queries of the data set.
        queries: which of them to mine for, ascending.
        offsets: the relevant documents of `queries[i]` are `documents[offsets[i]:offsets[i + 1]]`.
        documents: see `offsets`.
        depth: how many to keep.

    Returns:
        A negatives table: a row for each of `texts`, hardest first, then -1 where no further document shares
        a term with the query; nothing but -1 for queries not asked for.
    """
    table = np.full((len(texts), depth), -1, dtype=np.int64)
    for start in range(0, len(queries), _CHUNK):
        stop = min(start + _CHUNK, len(queries))
        # So deep that `depth` remain even where all positives come first.
        k = depth + int(np.diff(offsets[start : stop + 1]).max())
        scores, positions = index.search([texts[query] for query in queries[start:stop]], k)
        for row in range(stop - start):
            relevant = documents[offsets[start + row] : offsets[start + row + 1]]
            found = positions[row][(scores[row] > 0) & ~np.isin(positions[row], relevant)][:depth]
            table[queries[start + row], : len(found)] = found
    return table
