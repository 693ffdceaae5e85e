"""Judgements against rankings, as arrays.

Every ranking metric reads two things: the gains of the ranked documents in rank order, and all gains a query could
have had. Both come from one sorted array of (query, document) keys, so that ten thousand queries by a thousand
results take one binary search each and no dictionaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

Ranking = Int64[ndarray, "queries depth"]
Gains = Float32[ndarray, "queries depth"]


@dataclass(frozen=True)
class Relevance:
    """The judged documents of each query.

    Args:
        queries: position of the judged query, per judgement.
        documents: position of the judged document, per judgement.
        scores: its integer grade; above 0 is relevant (trec_eval's default level).
        query_count: how many queries there are; positions run from 0.
    """

    queries: Int64[ndarray, " judgements"]
    documents: Int64[ndarray, " judgements"]
    scores: Int64[ndarray, " judgements"]
    query_count: int

    def gains(self, ranking: Ranking) -> Gains:
        """The grade of each ranked document, 0 where it is unjudged, not relevant, or padding (-1)."""
        if not len(self.queries):
            return np.zeros(ranking.shape, np.float32)
        stride = int(max(self.documents.max(), ranking.max(initial=0))) + 1
        keys = self.queries * stride + self.documents
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        wanted = np.arange(len(ranking))[:, None] * stride + ranking
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = (keys[places] == wanted) & (ranking >= 0)
        grades = np.maximum(self.scores[order][places], 0)
        return np.where(found, grades, 0).astype(np.float32)

    def ideal_gains(self, depth: int) -> Gains:
        """The grades of each query's relevant documents, best first, padded with 0 to `depth`."""
        relevant = self.scores > 0
        queries, scores = self.queries[relevant], self.scores[relevant]
        order = np.lexsort((-scores, queries))
        queries, scores = queries[order], scores[order]
        starts = np.searchsorted(queries, np.arange(self.query_count))
        rank = np.arange(len(queries)) - starts[queries]
        ideal = np.zeros((self.query_count, depth), np.float32)
        kept = rank < depth
        ideal[queries[kept], rank[kept]] = scores[kept]
        return ideal

    def relevant_counts(self) -> Int64[ndarray, " queries"]:
        """How many relevant documents each query has."""
        return np.bincount(self.queries[self.scores > 0], minlength=self.query_count).astype(np.int64)
