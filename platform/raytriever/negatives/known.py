"""The documents that must not be negatives of a query, whatever they score.

1. Its relevant documents, and those of every query of the same text.
2. Documents of the same text as one of these.
3. The document that bears the query's own id, as BEIR leaves it out of rankings.

Pure functions of positions and groups: rows of equal text have equal group numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int8, Int64
from numpy import ndarray

RELEVANT, SAME_TEXT, OWN_ID = 1, 2, 3


@dataclass(frozen=True)
class Known:
    """Of query i: `documents[offsets[i]:offsets[i + 1]]`, each once, and beside them why (`RELEVANT` and so on)."""

    offsets: Int64[ndarray, " queries+1"]
    documents: Int64[ndarray, " rows"]
    reasons: Int8[ndarray, " rows"]

    @classmethod
    def of(
        cls,
        queries: Int64[ndarray, " asked"],
        pairs: tuple[Int64[ndarray, " pairs"], Int64[ndarray, " pairs"]],
        query_groups: Int64[ndarray, " queries"],
        document_groups: Int64[ndarray, " documents"],
        own: Int64[ndarray, " asked"],
    ) -> Known:
        """Collect them.

        Args:
            queries: query positions.
            pairs: positions of queries and of documents relevant to them, whatever split says so.
            query_groups, document_groups: a number for each position below 2^31, equal where the texts are.
            own: the document that bears the query's id, -1 where none does.
        """
        rows, documents = _members(query_groups[queries], query_groups[pairs[0]], pairs[1])
        twins, same = _members(document_groups[documents], document_groups, np.arange(len(document_groups)))
        with_own = np.flatnonzero(own >= 0)
        rows = np.concatenate([rows, rows[twins], with_own])
        reasons = np.repeat([RELEVANT, SAME_TEXT, OWN_ID], [len(documents), len(same), len(with_own)])
        documents = np.concatenate([documents, same, own[with_own]])
        # Each document once, for the first reason there is.
        order = np.lexsort((reasons, documents, rows))
        first = np.ones(len(order), dtype=bool)
        first[1:] = (rows[order[1:]] != rows[order[:-1]]) | (documents[order[1:]] != documents[order[:-1]])
        order = order[first]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[order], minlength=len(queries)))])
        return cls(offsets.astype(np.int64), documents[order], reasons[order].astype(np.int8))

    @property
    def counts(self) -> Int64[ndarray, " queries"]:
        """How many each query has."""
        return np.diff(self.offsets)

    def padded(self, rows: Int64[ndarray, " block"]) -> tuple[ndarray, ndarray]:
        """Documents and reasons of some queries, `[block, most]` each, filled up with -1 and 0."""
        counts = self.counts[rows]
        places = np.arange(int(counts.max(initial=0)))[None, :]
        there = places < counts[:, None]
        take = np.where(there, self.offsets[rows][:, None] + places, 0)
        if not len(self.documents):
            return np.full(there.shape, -1, np.int64), np.zeros(there.shape, np.int8)
        return np.where(there, self.documents[take], -1), np.where(there, self.reasons[take], 0).astype(np.int8)


def _members(asked: ndarray, groups: ndarray, values: ndarray) -> tuple[ndarray, ndarray]:
    """The values of each asked group: the place among `asked`, and the value, one a row."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts, ends = np.searchsorted(ordered, asked, side="left"), np.searchsorted(ordered, asked, side="right")
    counts = ends - starts
    places = np.repeat(np.arange(len(asked)), counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places, values[order[np.repeat(starts, counts) + within]]
