"""Relevance in a global batch: which candidates are positives of a query, and which are not its negatives.

The relevance depends only on ids. In training the loader computes it on the CPU before the step, so no step waits for
a GPU to read an id. A positive of a query is its positive wherever the document is in the batch. If a document occurs
twice, only its first occurrence is a candidate. Known positives are not negatives either. The pairs are stored in
sparse lists, built by sorting, so nothing here has the size of the score matrix.

This module uses numpy, because torch would give the loader's thread its own thread pool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy import ndarray

from raytriever.core.errors import LossInputError
from raytriever.losses.batch_and_temperature import PAD, RowRelevance, TeacherGroup


def _no_ids() -> Int64[ndarray, " 0"]:
    return np.zeros(0, dtype=np.int64)


class NoNegativesError(LossInputError):
    """The global batch has no negatives: all pairs of a query and a document are positives or known positives."""


@dataclass(frozen=True)
class GlobalIds:
    """Ids of the queries and passages of all workers, in the order of the workers' ranks."""

    queries: Int64[ndarray, " queries"]  # id of each query
    positives: Int64[ndarray, "queries positives"]  # document ids of each query's positives, `PAD` in empty slots
    passages: Int64[ndarray, " passages"]  # document id of each passage
    # `known_rows`, `known`: further known positives, as pairs of a row of `queries` and a document id.
    known_rows: Int64[ndarray, " known"] = field(default_factory=_no_ids)
    known: Int64[ndarray, " known"] = field(default_factory=_no_ids)
    # `seed`, `step`: see `RowRelevance`.
    seed: int = 0
    step: int = 0


# Document ids of each row's own group, `PAD` in empty slots, and their scores, NaN for a document without a score.
Scored = tuple[Int64[ndarray, "rows group"], Float[ndarray, "rows group"]]


def find_relevance(
    ids: GlobalIds,
    rank: int,
    size: int,
    teacher: Scored | None = None,
    symmetric: bool = False,
    labels: Scored | None = None,
) -> RowRelevance:
    """Compute the relevance of one worker's rows in CPU memory. All workers have equally many rows.

    Args:
        teacher: a teacher's scores of any size; higher is more relevant. Repeats of a document in a row are ignored.
        symmetric: also compute the other direction, where passages search for queries.
        labels: graded relevance, 0 to 1. Without a label, positives have 1 and other passages have 0.

    Raises:
        LossInputError: an id is negative, a query has no positive, a positive is not among the passages, there are no
            negatives, or a teacher score is infinite. All workers raise the same error, except for a teacher score.
    """
    if ids.passages.size and ids.passages.min() < 0:
        raise LossInputError(f"{ids.passages.min()} is not an id", "passages", "give ids of at least 0")
    lacking = (ids.positives < 0).all(1)
    if lacking.any():
        raise LossInputError(f"query id {ids.queries[lacking][0]} has no positive", "positives", "give it a positive")
    distinct = _Distinct(ids.passages)
    columns = distinct.columns(ids.positives)
    missing = (columns == PAD) & (ids.positives != PAD)
    if missing.any():
        what = f"document {ids.positives[missing][0]} is a positive but not among the passages"
        raise LossInputError(what, "positives", "add it to the passages of the batch")
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
    own, texts = (slice(rank * n // size, (rank + 1) * n // size) for n in (len(columns), len(ids.passages)))
    everyones = mask_repeats(columns)
    positives, pair_count = everyones[own], int((everyones != PAD).sum())
    result = pairs.relevance(own, ids.queries[own], ids.passages[texts], positives, pair_count, distinct)
    result = replace(result, seed=ids.seed, step=ids.step)
    group, graded = (scores and _group(*scores, distinct, positives, pairs, own.start) for scores in (teacher, labels))
    result = replace(result, group=group, labels=graded)
    return replace(result, exchanged=_exchange_roles(ids, own)) if symmetric else result


def mask_repeats(columns: Int64[ndarray, "rows some"]) -> Int64[ndarray, "rows some"]:
    """Return the columns with `PAD` in place of a column that occurred earlier in its row."""
    order = columns.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(columns, order, 1)
    repeats = np.zeros(columns.shape, dtype=bool)
    np.put_along_axis(repeats, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    return np.where(repeats, PAD, columns)


def in_ranges(begin: Int64[ndarray, " ranges"], end: Int64[ndarray, " ranges"]) -> tuple[ndarray, ndarray]:
    """Concatenate the ranges [begin, end). Return the numbers in them, and for each number the index of its range."""
    counts = end - begin
    owner = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(owner)) + (begin - counts.cumsum() + counts)[owner], owner


class _Distinct:
    """Distinct ids of a list, numbered as columns in the order of their first occurrence."""

    def __init__(self, ids: Int64[ndarray, " items"]) -> None:
        self._ids, first = np.unique(ids, return_index=True)
        order = first.argsort()
        self.positions = first[order]
        self._columns = np.empty_like(order)
        self._columns[order] = np.arange(len(order))
        self.count, self.repeats = len(first), len(first) < len(ids)

    def columns(self, ids: Int64[ndarray, "*shape"]) -> Int64[ndarray, "*shape"]:
        """Return the column of each id; `PAD` for an unknown id."""
        index = np.minimum(np.searchsorted(self._ids, ids), self.count - 1)
        return np.where(self._ids[index] == ids, self._columns[index], PAD)


class _Pairs:
    """Distinct pairs (row, column) that are not negatives, in ascending order. Pairs with column `PAD` are left out."""

    def __init__(self, rows: ndarray, columns: ndarray, row_count: int, column_count: int) -> None:
        self._dim = column_count
        self._keys = np.unique((rows * column_count + columns)[columns != PAD])
        self._rows = row_count
        self.negatives = row_count * column_count - len(self._keys)

    def contain(self, rows: ndarray, columns: ndarray) -> Bool[ndarray, "*shape"]:
        """Return True for each (row, column) that is one of the pairs."""
        keys = rows * self._dim + columns
        index = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return self._keys[index] == keys

    def relevance(
        self,
        own: slice,
        queries: ndarray,
        passages: ndarray,
        positives: ndarray,
        positive_pairs: int,
        distinct: _Distinct,
    ) -> RowRelevance:
        """Return the relevance of the rows `own`. The other arguments have only these rows."""
        starts = np.searchsorted(self._keys, np.arange(own.start, own.stop + 1) * self._dim)
        rows, columns = np.divmod(self._keys[starts[0] : starts[-1]], self._dim)
        return RowRelevance(
            torch.from_numpy(queries),
            torch.from_numpy(passages),
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
        what = f"scores have the shape {scores.shape}, but documents have the shape {documents.shape}"
        raise LossInputError(what, "teacher", "give one score for each document")
    if np.isinf(scores).any():
        raise LossInputError("a score is infinite", "teacher", "give finite scores, and NaN for no score")
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
    """Compute the relevance of the other direction: first positives of the queries `own` search for all queries.

    See `Candidates.exchange_roles`."""
    queries = _Distinct(ids.queries)
    owners = queries.columns(ids.queries)
    first = np.take_along_axis(ids.positives, (ids.positives != PAD).argmax(1)[:, None], 1)[:, 0]
    rows, slots = np.nonzero(ids.positives != PAD)
    documents = np.concatenate([ids.positives[rows, slots], ids.known])
    owners_of = owners[np.concatenate([rows, ids.known_rows])]
    order = documents.argsort(kind="stable")
    documents, owners_of = documents[order], owners_of[order]
    begin, end = (np.searchsorted(documents, first, side) for side in ("left", "right"))
    numbers, rows = in_ranges(begin, end)
    pairs = _Pairs(rows, owners_of[numbers], len(first), queries.count)
    own_queries = ids.queries[own]
    return pairs.relevance(own, own_queries, own_queries, owners[own][:, None], len(first), queries)
