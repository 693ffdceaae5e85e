"""Judgements against rankings, as arrays.

Every ranking metric reads one thing: at what rank each judged document stands. It is found in one pass over the
ranking, in which every result is looked up among its own query's judgements, and kept a judgement an entry. So ten
thousand queries by a thousand results take one pass and no dictionaries, and a metric is a sum over judgements.
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

# The rank of a judged document that was not found: beyond every cutoff.
NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Relevance:
    """Judged documents of each query.

    Args:
        queries: position of the judged query, int64 `[judgements]`.
        documents: position of the judged document, int64 `[judgements]`.
        scores: integer grade of the document, int64 `[judgements]`; above 0 is relevant.
        query_count: number of queries; positions count from 0.

    Example:
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
            ranking: document positions, best first, padded with -1.
            level: the grade from which on a document is relevant in every metric but nDCG, at least 1.

        Raises:
            MetricInputError: a judgement is given twice or belongs to no query, the ranking has another number of
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
        row = _place(np.ascontiguousarray(ranking, np.int64), starts, documents, ranks, lengths)
        if row >= 0:
            raise MetricInputError("a document stands there twice", f"ranking of query {row}", "rank each once")
        return JudgedRanks(queries, grades, ranks, lengths, level)

    def gains(self, ranking: Ranking) -> Gains:
        """Return the grade of each ranked document, 0 where it is unjudged, not relevant, or padding (-1).

        Args:
            ranking: document positions, best first, padded with -1.
        """
        placed = self.find_ranks(ranking)
        gains = np.zeros(ranking.shape, np.float32)
        found = placed.ranks < ranking.shape[1]
        gains[placed.queries[found], placed.ranks[found]] = np.maximum(placed.grades[found], 0)
        return gains

    @cached_property
    def _ordered(self) -> tuple[ndarray, ndarray, ndarray]:
        """Queries, documents and grades by query and document."""
        if len(self.queries) and not 0 <= self.queries.min() <= self.queries.max() < self.query_count:
            raise MetricInputError("a judgement of a query that is not there", "judgements", "count queries from 0")
        order = np.lexsort((self.documents, self.queries))
        queries, documents = self.queries[order], self.documents[order]
        twice = np.flatnonzero((queries[1:] == queries[:-1]) & (documents[1:] == documents[:-1]))
        if len(twice):
            where = f"judgements of query {queries[twice[0]]}"
            raise MetricInputError(f"document {documents[twice[0]]} is judged twice", where, "keep one grade")
        return queries.astype(np.int64), documents.astype(np.int64), self.scores[order].astype(np.int64)


@dataclass(frozen=True)
class JudgedRanks:
    """Where a ranking has the judged documents; judgements stand by query.

    Args:
        queries: position of the judged query, per judgement.
        grades: the judged document's grade.
        ranks: its place in the ranking, from 0; `NOWHERE` if it is not there.
        lengths: results of each query, padding not counted.
        level: the grade from which on a document is relevant.
    """

    queries: Int64[ndarray, " judgements"]
    grades: Int64[ndarray, " judgements"]
    ranks: Int64[ndarray, " judgements"]
    lengths: Int64[ndarray, " queries"]
    level: int

    @cached_property
    def relevant(self) -> Bool[ndarray, " judgements"]:
        """Whether the judgement reaches the level."""
        return self.grades >= self.level

    @cached_property
    def relevant_counts(self) -> PerQuery:
        """How many relevant documents each query has, in the ranking or not."""
        return self.totals(self.relevant)

    def within(self, cutoff: int | None) -> Bool[ndarray, " judgements"]:
        """Whether the document stands among the `cutoff` best; anywhere in the ranking for None."""
        return self.ranks < (NOWHERE if cutoff is None else cutoff)

    def totals(self, chosen: Bool[ndarray, " judgements"], worth: ndarray | None = None) -> PerQuery:
        """The number of chosen judgements of each query, or the sum of what they are worth."""
        weights = None if worth is None else worth[chosen]
        return np.bincount(self.queries[chosen], weights, len(self.lengths)).astype(np.float64)


def share(part: PerQuery, whole: PerQuery) -> PerQuery:
    """`part / whole`, 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


@numba.njit(cache=True)
def _place(ranking, starts, documents, ranks, lengths):  # type: ignore[no-untyped-def]
    """Write ranks and lengths; the first query in whose ranking a judged document stands twice, or -1."""
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
