"""Hard negatives of a data set's queries: which documents, who found them, how hard.

In memory it is one array a column, the rows of a query next to each other, hardest first: ten million rows are a
quarter of a gigabyte. Everything goes through `NegativesTable.of`, which holds to two rules:

1. A document that is relevant to the query is no negative of it. Such rows are left out and counted.
2. A document stands once in a query's rows. Found twice, it counts for whoever ranked it higher, at equal ranks for
   the origin that comes first in `records.ORIGINS`; so no group holds it twice, and each origin's share is its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from jaxtyping import Float32, Int8, Int32, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.data.records import ORIGINS
from raytriever.errors import DataError

COLUMNS = ("documents", "origins", "ranks", "scores", "rounds")


@dataclass(frozen=True)
class NegativesTable:
    """The rows of query q are those from `offsets[q]` to `offsets[q + 1]`, by rank.

    Args:
        offsets: one more than the data set has queries.
        documents: document positions.
        origins: who found them, as places in `records.ORIGINS`.
        ranks: from 0, the hardest first.
        scores: the finder's, NaN where none was given.
        rounds: the round of mining that found them, from 0.
        relevant: rows left out because their document is relevant to the query.
        repeated: rows left out because the query has the document already.
    """

    offsets: Int64[ndarray, " queries+1"]
    documents: Int64[ndarray, " rows"]
    origins: Int8[ndarray, " rows"]
    ranks: Int32[ndarray, " rows"]
    scores: Float32[ndarray, " rows"]
    rounds: Int32[ndarray, " rows"]
    relevant: int = 0
    repeated: int = 0

    @classmethod
    def of(
        cls,
        dataset: RetrievalDataset,
        queries: ndarray,
        documents: ndarray,
        origins: ndarray | str,
        ranks: ndarray | int = 0,
        scores: ndarray | float = np.nan,
        rounds: ndarray | int = 0,
    ) -> NegativesTable:
        """A table of rows in any order.

        Args:
            dataset: whose positions these are; the judgements of all its opened splits say what is relevant.
            queries: query positions, one a row.
            documents: document positions, one a row.
            origins: places in `records.ORIGINS`, or one origin's name for all rows.
            ranks, scores, rounds: see the class; one for each row or one for all.

        Raises:
            DataError: a position that the data set does not have.
        """
        _check_positions(dataset, queries, documents)
        code: ndarray | int = ORIGINS.index(origins) if isinstance(origins, str) else origins
        columns = [
            np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=kind), np.shape(queries)))
            for values, kind in (
                (queries, np.int64),
                (documents, np.int64),
                (code, np.int8),
                (ranks, np.int32),
                (scores, np.float32),
                (rounds, np.int32),
            )
        ]
        pairs = columns[0] * len(dataset.documents) + columns[1]
        relevant = np.isin(pairs, _relevant_pairs(dataset))
        order = np.lexsort((columns[2], columns[3], pairs))
        order = order[~relevant[order]]
        again = np.zeros(len(order), dtype=bool)
        again[1:] = pairs[order[1:]] == pairs[order[:-1]]
        order = order[~again]
        order = order[np.lexsort((columns[2][order], columns[3][order], columns[0][order]))]
        offsets = np.zeros(len(dataset.queries) + 1, dtype=np.int64)
        np.cumsum(np.bincount(columns[0][order], minlength=len(dataset.queries)), out=offsets[1:])
        kept = dict(zip(COLUMNS, (column[order] for column in columns[1:]), strict=True))
        return cls(offsets=offsets, relevant=int(relevant.sum()), repeated=int(again.sum()), **kept)

    @classmethod
    def from_depth(
        cls, dataset: RetrievalDataset, table: Int64[ndarray, "queries depth"], origin: str
    ) -> NegativesTable:
        """From a row for every query of the data set: document positions, hardest first, then -1.

        Raises:
            DataError: another number of rows than the data set has queries, or documents it does not have.
        """
        if len(table) != len(dataset.queries):
            raise DataError(
                f"the negatives table has {len(table)} rows for {len(dataset.queries)} queries",
                dataset.name,
                "mine the negatives of this data set",
            )
        queries, ranks = np.nonzero(table >= 0)
        return cls.of(dataset, queries, table[queries, ranks], origin, ranks)

    @classmethod
    def judged(cls, dataset: RetrievalDataset, split: str) -> NegativesTable:
        """The pairs of a split that were judged and found irrelevant, as `gold`."""
        rows = dataset.judgements[split]
        rows = rows.where(rows.scores <= 0)
        return cls.of(dataset, rows.queries, rows.documents, "gold")

    @classmethod
    def merged(cls, dataset: RetrievalDataset, tables: Sequence[NegativesTable]) -> NegativesTable:
        """The rows of several tables of one data set; what each left out counts as left out."""
        columns = (np.concatenate([getattr(table, name) for table in tables]) for name in ("queries", *COLUMNS))
        found = cls.of(dataset, *columns)
        return replace(
            found,
            relevant=found.relevant + sum(table.relevant for table in tables),
            repeated=found.repeated + sum(table.repeated for table in tables),
        )

    @classmethod
    def chained(cls, tables: Sequence[NegativesTable], document_starts: Sequence[int]) -> NegativesTable:
        """The tables of data sets that were combined, in their order, as one of the combined data set.

        Args:
            tables: one a data set; `NegativesTable.none` where there are no negatives.
            document_starts: the position at which each data set's documents begin.
        """
        offsets = reduce(
            lambda done, table: np.append(done, done[-1] + table.offsets[1:]), tables, np.zeros(1, np.int64)
        )
        documents = [table.documents + start for table, start in zip(tables, document_starts, strict=True)]
        columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMNS[1:]}
        return cls(
            offsets=offsets,
            documents=np.concatenate(documents),
            relevant=sum(table.relevant for table in tables),
            repeated=sum(table.repeated for table in tables),
            **columns,
        )

    @classmethod
    def none(cls, dataset: RetrievalDataset) -> NegativesTable:
        """A table without rows."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls.of(dataset, nothing, nothing, nothing)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def queries(self) -> Int64[ndarray, " rows"]:
        """The query position of every row."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def digest(self) -> str:
        """SHA-256 over what draws are made of: documents, origins and ranks by query."""
        state = hashlib.sha256()
        for column in (self.offsets, self.documents, self.origins, self.ranks):
            state.update(np.ascontiguousarray(column).tobytes())
        return state.hexdigest()

    def counts(self) -> dict[str, int]:
        """For tracking: rows by origin, and the rows that were left out."""
        by_origin = np.bincount(self.origins, minlength=len(ORIGINS)).tolist()
        found = {name: count for name, count in zip(ORIGINS, by_origin, strict=True) if count}
        return found | {"relevant": self.relevant, "repeated": self.repeated}


def _relevant_pairs(dataset: RetrievalDataset) -> Int64[ndarray, " pairs"]:
    pairs = [
        rows.queries[rows.scores > 0] * len(dataset.documents) + rows.documents[rows.scores > 0]
        for rows in dataset.judgements.values()
    ]
    return np.concatenate(pairs) if pairs else np.zeros(0, dtype=np.int64)


def _check_positions(dataset: RetrievalDataset, queries: ndarray, documents: ndarray) -> None:
    for name, positions, size in (
        ("query", queries, len(dataset.queries)),
        ("document", documents, len(dataset.documents)),
    ):
        outside = (positions < 0) | (positions >= size)
        if outside.any():
            raise DataError(
                f"the negatives table names {name} {positions[outside][0]} of {size}",
                dataset.name,
                "mine the negatives of this data set",
            )
