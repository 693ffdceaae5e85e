"""Relevance in a global batch: which candidates are positives of a query, and which are no negatives.

It is a function of ids alone, computed on the CPU: in training by the loader, ahead of the step, so that no step waits
for a GPU to read an id. A document is a query's positive at any position in the batch. A document that occurs twice
counts once, at its first position. Sparse lists, found by sorting, hold the pairs of query and candidate that are
positives, or known positives and therefore no negatives. Nothing here has the size of the score matrix.

This module calls numpy rather than torch, which would give the loader's thread a pool of threads of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy import ndarray
from torch import Tensor

from raytriever.errors import LossInputError

PAD = -1


class NoNegativesError(LossInputError):
    """Every pair of a query and a document of the global batch is a positive or known positive."""


@dataclass(frozen=True)
class GlobalIds:
    """Ids of the queries and passages of all workers, in the order of rank.

    Args:
        queries: one id for each query.
        positives: documents of each query's positives, `PAD` in empty slots.
        passages: document of each passage.
        known_rows, known: further known positives, as pairs of a row of `queries` and a document.
    """

    queries: Int64[ndarray, " queries"]
    positives: Int64[ndarray, "queries positives"]
    passages: Int64[ndarray, " passages"]
    known_rows: Int64[ndarray, " known"]
    known: Int64[ndarray, " known"]


@dataclass(frozen=True)
class TeacherGroup:
    """A teacher's scores of each row's own group.

    Args:
        columns: columns of the passages with a score, `PAD` in empty slots, no column twice in a row.
        scores: the teacher's scores.
        is_positive: slots of positives of the query.
        is_negative: slots of passages that are neither positives nor known positives.
        passages: number of passages of all rows' groups, with and without a score.
    """

    columns: Int64[Tensor, "rows group"]
    scores: Float[Tensor, "rows group"]
    is_positive: Bool[Tensor, "rows group"]
    is_negative: Bool[Tensor, "rows group"]
    passages: int

    def map(self, copy: Callable[[Tensor], Tensor]) -> TeacherGroup:
        """Return the group with a copy of each tensor."""
        return TeacherGroup(
            copy(self.columns), copy(self.scores), copy(self.is_positive), copy(self.is_negative), self.passages
        )


@dataclass(frozen=True)
class RowRelevance:
    """Index lists of one worker's rows of the score matrix.

    Args:
        queries: id of each row.
        distinct: position of each candidate among the passages of all workers; None where no passage occurs twice.
        positives: columns of each row's positives, `PAD` in empty slots, no column twice in a row.
        excluded_rows: row of each pair that is no negative (a positive or known positive), ascending.
        excluded_columns: column of each such pair.
        excluded_starts: first such pair of each row, and last their number; always on the CPU.
        rows: number of rows over all workers.
        negatives: number of negative pairs over all workers.
        positive_pairs: number of positives of all rows over all workers.
        group: the teacher's scores of each row's own group; None without a teacher.
        exchanged: the same where passages search for queries: rows are the first positives of this worker's queries,
            candidates the distinct queries of all workers. None where no loss needs it.
    """

    queries: Int64[Tensor, " rows"]
    distinct: Int64[Tensor, " candidates"] | None
    positives: Int64[Tensor, "rows positives"]
    excluded_rows: Int64[Tensor, " excluded"]
    excluded_columns: Int64[Tensor, " excluded"]
    excluded_starts: Int64[ndarray, " rows+1"]
    rows: int
    negatives: int
    positive_pairs: int
    group: TeacherGroup | None = None
    exchanged: RowRelevance | None = None

    @property
    def is_positive(self) -> Bool[Tensor, "rows positives"]:
        """True in the slots of `positives` that hold a column."""
        return self.positives != PAD

    @property
    def is_full(self) -> bool:
        """True if every slot of `positives` holds a column, on every worker."""
        return self.positive_pairs == self.rows * self.positives.shape[1]

    @property
    def slots(self) -> Int64[Tensor, "rows positives"]:
        """The positives' columns, and any column in empty slots."""
        return self.positives if self.is_full else self.positives.clamp(min=0)

    def keep(self, passages: Tensor) -> Tensor:
        """Return the rows of all workers' passages (or queries) that are candidates."""
        return passages if self.distinct is None else passages.index_select(0, self.distinct)

    def map(self, copy: Callable[[Tensor], Tensor]) -> RowRelevance:
        """Return the relevance with a copy of each tensor, always in the same order."""
        return replace(
            self,
            queries=copy(self.queries),
            distinct=None if self.distinct is None else copy(self.distinct),
            positives=copy(self.positives),
            excluded_rows=copy(self.excluded_rows),
            excluded_columns=copy(self.excluded_columns),
            group=self.group and self.group.map(copy),
            exchanged=self.exchanged and self.exchanged.map(copy),
        )


def find_relevance(
    ids: GlobalIds,
    rank: int,
    size: int,
    teacher: tuple[Int64[ndarray, "rows group"], Float[ndarray, "rows group"]] | None = None,
    both_ways: bool = False,
) -> RowRelevance:
    """Return the relevance of one worker's rows, an equal share of the queries.

    Args:
        ids: of all workers.
        rank: of the worker.
        size: number of workers.
        teacher: documents and scores of the groups of this worker's rows.
        both_ways: whether passages search for queries too.

    Raises:
        LossInputError: an id is negative, a query has no positive, a positive is not among the passages, no pair is
            negative, or a score is infinite; the same on every worker, except for the score.
    """
    if ids.passages.size and ids.passages.min() < 0:
        raise LossInputError(f"{ids.passages.min()} is not an id", "ids.passages", "ids start at 0")
    lacking = (ids.positives < 0).all(1)
    if lacking.any():
        raise LossInputError(
            f"query id {ids.queries[lacking][0]} has no positive", "ids.positives", "give every query one"
        )
    distinct = _Distinct(ids.passages)
    columns = distinct.columns(ids.positives)
    missing = (columns == PAD) & (ids.positives != PAD)
    if missing.any():
        raise LossInputError(
            f"document {ids.positives[missing][0]} is a positive but not among the passages",
            "ids.positives",
            "add it to the passages of the batch",
        )
    rows, slots = np.nonzero(columns != PAD)
    pairs = _Pairs(
        np.concatenate([rows, ids.known_rows]),
        np.concatenate([columns[rows, slots], distinct.columns(ids.known)]),
        len(columns),
        distinct.count,
    )
    if pairs.negatives == 0:
        raise NoNegativesError(
            f"the batch has no negatives: {len(columns)} queries, {distinct.count} distinct documents, and every "
            "pair of them is a positive or a known positive",
            remedy="use a larger batch or hard negatives",
        )
    share = len(columns) // size
    own = slice(rank * share, (rank + 1) * share)
    everyones = mask_repeats(columns)
    positives = everyones[own]
    result = pairs.relevance(own, ids.queries, positives, int((everyones != PAD).sum()), distinct)
    if teacher is not None:
        result = replace(result, group=_group(*teacher, distinct, positives, pairs, own.start))
    return replace(result, exchanged=_exchange_roles(ids, own)) if both_ways else result


def mask_repeats(columns: Int64[ndarray, "rows some"]) -> Int64[ndarray, "rows some"]:
    """Return the same columns in the same order, with every later repeat in a row replaced by `PAD`."""
    order = columns.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(columns, order, 1)
    repeats = np.zeros(columns.shape, dtype=bool)
    np.put_along_axis(repeats, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    return np.where(repeats, PAD, columns)


class _Distinct:
    """Distinct ids of a list, in the order of their first occurrence, with a column number each."""

    def __init__(self, ids: Int64[ndarray, " items"]) -> None:
        self._ids, first = np.unique(ids, return_index=True)
        order = first.argsort()
        self.positions = first[order]
        self._columns = np.empty_like(order)
        self._columns[order] = np.arange(len(order))
        self.count, self.repeats = len(first), len(first) < len(ids)

    def columns(self, ids: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        """Return the column of each id, `PAD` for an id that does not occur."""
        index = np.minimum(np.searchsorted(self._ids, ids), self.count - 1)
        return np.where(self._ids[index] == ids, self._columns[index], PAD)


class _Pairs:
    """Pairs of a row and a column that are no negatives, each once, ascending; a column `PAD` is no pair.

    Args:
        rows, columns: of the pairs, in any order.
        row_count, column_count: of the score matrix of all workers.
    """

    def __init__(self, rows: ndarray, columns: ndarray, row_count: int, column_count: int) -> None:
        self._width = column_count
        self._keys = np.unique((rows * column_count + columns)[columns != PAD])
        self._rows = row_count
        self.negatives = row_count * column_count - len(self._keys)

    def contain(self, rows: ndarray, columns: ndarray) -> Bool[ndarray, "*shape"]:
        """Return whether each (row, column) is one of the pairs."""
        keys = rows * self._width + columns
        index = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return self._keys[index] == keys

    def relevance(
        self, own: slice, queries: ndarray, positives: ndarray, positive_pairs: int, distinct: _Distinct
    ) -> RowRelevance:
        """Return the relevance of some rows."""
        starts = np.searchsorted(self._keys, np.arange(own.start, own.stop + 1) * self._width)
        rows, columns = np.divmod(self._keys[starts[0] : starts[-1]], self._width)
        return RowRelevance(
            torch.from_numpy(queries[own]),
            torch.from_numpy(distinct.positions) if distinct.repeats else None,
            torch.from_numpy(positives),
            torch.from_numpy(rows - own.start),
            torch.from_numpy(columns),
            starts - starts[0],
            self._rows,
            self.negatives,
            positive_pairs,
        )


def _group(
    documents: ndarray, scores: ndarray, distinct: _Distinct, positives: ndarray, pairs: _Pairs, first_row: int
) -> TeacherGroup:
    if scores.shape != documents.shape:
        raise LossInputError(f"{scores.shape} scores for {documents.shape} documents", "ids.teacher")
    if np.isinf(scores).any():
        raise LossInputError("a score is infinite", "ids.teacher", "give finite scores, NaN where there is none")
    columns = mask_repeats(np.where(np.isnan(scores), PAD, distinct.columns(documents)))
    is_scored = columns != PAD
    is_positive = (columns[:, :, None] == positives[:, None, :]).any(2)
    is_excluded = pairs.contain(first_row + np.arange(len(columns))[:, None], columns)
    return TeacherGroup(
        torch.from_numpy(columns),
        torch.from_numpy(scores),
        torch.from_numpy(is_scored & is_positive),
        torch.from_numpy(is_scored & ~is_excluded),
        int((mask_repeats(documents) != PAD).sum()),
    )


def _exchange_roles(ids: GlobalIds, own: slice) -> RowRelevance:
    """Return the relevance where the first positives of `own` queries search for the queries of all workers.

    If a passage is a positive or known positive of a query, that query is never a negative of the passage, at any
    position in the batch.
    """
    queries = _Distinct(ids.queries)
    owners = queries.columns(ids.queries)
    first = np.take_along_axis(ids.positives, (ids.positives != PAD).argmax(1)[:, None], 1)[:, 0]
    rows, slots = np.nonzero(ids.positives != PAD)
    documents = np.concatenate([ids.positives[rows, slots], ids.known])
    owners_of = owners[np.concatenate([rows, ids.known_rows])]
    order = documents.argsort(kind="stable")
    documents, owners_of = documents[order], owners_of[order]
    begin, end = (np.searchsorted(documents, first, side) for side in ("left", "right"))
    counts = end - begin
    within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    columns = owners_of[np.repeat(begin, counts) + within]
    pairs = _Pairs(np.repeat(np.arange(len(first)), counts), columns, len(first), queries.count)
    return pairs.relevance(own, ids.queries, owners[own][:, None], len(first), queries)
