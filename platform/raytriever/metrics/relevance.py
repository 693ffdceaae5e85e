"""Judgements against rankings, as arrays.

Every ranking metric needs only the rank of each judged document. One pass over the ranking finds them: every result is
searched among the judgements of its query. So ten thousand queries by a thousand results take one pass and no
dictionaries, and a metric is a sum over judgements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError

Ranking = Int64[ndarray, "queries depth"]
Gains = Float32[ndarray, "queries depth"]
PerQuery = Float64[ndarray, " queries"]

# Rank of a judged document that is not in the ranking: beyond every cutoff.
NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Relevance:
    """Judged documents of each query.

    Args:
        queries: position of the judged query, int64 `[judgements]`.
        documents: position of the judged document, int64 `[judgements]`.
        scores: integer grade of the document, int64 `[judgements]`; above 0 is relevant.
        query_count: number of queries; positions count from 0.

    Examples:
        >>> queries, documents, grades = np.array([0, 0, 1]), np.array([4, 7, 5]), np.array([2, 1, 1])
        >>> rt.metrics.Relevance(queries, documents, grades, query_count=2).query_count
        2
    """

    queries: Int64[ndarray, " judgements"]
    documents: Int64[ndarray, " judgements"]
    scores: Int64[ndarray, " judgements"]
    query_count: int

    def find_ranks(self, ranking: Ranking, level: int = 1) -> JudgedRanks:
        """Find each judged document in its query's ranking.

        Args:
            ranking: positions of documents, best first, padded with -1.
            level: lowest grade of a relevant document in every metric but nDCG, at least 1.

        Raises:
            MetricInputError: a judgement is repeated or belongs to no query, the ranking has another number of
                queries, or it holds a judged document twice.
        """
        if level < 1:
            raise MetricInputError(f"relevance level {level}", "level", "a grade of at least 1 is relevant")
        if ranking.ndim != 2 or len(ranking) != self.query_count:
            shape = f"a ranking of shape {ranking.shape}"
            raise MetricInputError(shape, "ranking", f"a row for each of the {self.query_count} queries is expected")
        queries, documents, grades = self._ordered
        starts = np.searchsorted(queries, np.arange(self.query_count + 1))
        ranks = np.full(len(queries), NOWHERE)
        lengths = np.zeros(self.query_count, np.int64)
        row = _find_ranks(np.ascontiguousarray(ranking, np.int64), starts, documents, ranks, lengths)
        if row >= 0:
            raise MetricInputError("a document is ranked twice", f"ranking of query {row}", "rank each once")
        return JudgedRanks(queries, grades, ranks, lengths, level)

    def gains(self, ranking: Ranking) -> Gains:
        """Return the grade of each ranked document; 0 for an unjudged or irrelevant document and for padding.

        Args:
            ranking: document positions, best first, padded with -1.
        """
        matches = self.find_ranks(ranking)
        gains = np.zeros(ranking.shape, np.float32)
        ranked = matches.ranks < ranking.shape[1]
        gains[matches.queries[ranked], matches.ranks[ranked]] = np.maximum(matches.grades[ranked], 0)
        return gains

    @cached_property
    def _ordered(self) -> tuple[ndarray, ndarray, ndarray]:
        """Queries, documents and grades, sorted by query and document."""
        if len(self.queries) and not 0 <= self.queries.min() <= self.queries.max() < self.query_count:
            raise MetricInputError("a judgement belongs to no query", "judgements", "count queries from 0")
        order = np.lexsort((self.documents, self.queries))
        queries, documents = self.queries[order], self.documents[order]
        twice = np.flatnonzero((queries[1:] == queries[:-1]) & (documents[1:] == documents[:-1]))
        if len(twice):
            where = f"judgements of query {queries[twice[0]]}"
            raise MetricInputError(f"document {documents[twice[0]]} is judged twice", where, "keep one grade")
        return queries.astype(np.int64), documents.astype(np.int64), self.scores[order].astype(np.int64)


@dataclass(frozen=True)
class JudgedRanks:
    """Ranks of the judged documents; judgements are sorted by query.

    Args:
        queries: position of the query of each judgement.
        grades: grade of each judgement.
        ranks: rank of each judged document, from 0; `NOWHERE` if it is not in the ranking.
        lengths: number of results of each query, without padding.
        level: lowest grade of a relevant document.
    """

    queries: Int64[ndarray, " judgements"]
    grades: Int64[ndarray, " judgements"]
    ranks: Int64[ndarray, " judgements"]
    lengths: Int64[ndarray, " queries"]
    level: int

    @cached_property
    def relevant(self) -> Bool[ndarray, " judgements"]:
        """True for judgements of a relevant grade."""
        return self.grades >= self.level

    @cached_property
    def relevant_counts(self) -> PerQuery:
        """Number of relevant documents of each query, in the ranking or not."""
        return self.totals(self.relevant)

    def within(self, cutoff: int | None) -> Bool[ndarray, " judgements"]:
        """Return True for documents among the `cutoff` best, or anywhere in the ranking for None."""
        return self.ranks < (NOWHERE if cutoff is None else cutoff)

    def totals(self, chosen: Bool[ndarray, " judgements"], worth: ndarray | None = None) -> PerQuery:
        """Count the chosen judgements of each query, or add up their values in `worth`."""
        weights = None if worth is None else worth[chosen]
        return np.bincount(self.queries[chosen], weights, len(self.lengths)).astype(np.float64)


def share(part: PerQuery, whole: PerQuery) -> PerQuery:
    """Return `part / whole`, and 0 for a whole of 0."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


@numba.njit(cache=True)
def _find_ranks(ranking, starts, documents, ranks, lengths):  # type: ignore[no-untyped-def]
    """Write ranks and lengths; return the first query whose ranking holds a judged document twice, or -1."""
    for query in range(ranking.shape[0]):
        begin, end = starts[query], starts[query + 1]
        for rank in range(ranking.shape[1]):
            document = ranking[query, rank]
            if document < 0:
                continue
            lengths[query] += 1
            low, high = begin, end
            while low < high:
                middle = (low + high) >> 1
                if documents[middle] < document:
                    low = middle + 1
                else:
                    high = middle
            if low < end and documents[low] == document:
                if ranks[low] != NOWHERE:
                    return query
                ranks[low] = rank
    return -1
