"""Global batch, seen from one worker: its own queries against every distinct document of all workers.

Every loss reads relevance from document ids alone: a document is a query's positive at any position in the batch. A
document that occurs twice counts once, at its first position. Sparse index lists, found by sorting ids, hold the pairs
of query and candidate that are positives, or known positives and therefore no negatives. Nothing here has the size of
the score matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from raytriever.errors import LossInputError
from raytriever.losses.engine.workers import Workers

PAD = -1


@dataclass(frozen=True)
class TeacherScores:
    """A teacher's scores of the passages of each query's own group.

    Args:
        documents: document ids, `PAD` (-1) in empty slots. A document that occurs twice counts once.
        scores: score of each document, unbounded, higher is more relevant; NaN if the teacher has none.
    """

    documents: Int64[Tensor, "queries group"]
    scores: Float[Tensor, "queries group"]


@dataclass(frozen=True)
class BatchIds:
    """Ids of the queries and passages of one worker; `PAD` (-1) fills rows of unequal length.

    Args:
        queries: one id for each query; `rand1` draws by (seed, step, query id).
        positives: document ids of each query's positives, in the order of its group.
        passages: document ids of this worker's passages: positives and hard negatives.
        known: further known positives of each query. They are neither negatives nor positives here.
        seed: seed of the run.
        step: number of the optimiser step.
        teacher: a teacher's scores of each query's own group; None without a teacher.
    """

    queries: Int64[Tensor, " queries"]
    positives: Int64[Tensor, "queries positives"]
    passages: Int64[Tensor, " passages"]
    known: Int64[Tensor, "queries known"] | None = None
    seed: int = 0
    step: int = 0
    teacher: TeacherScores | None = None


def check_batch(
    queries: Float[Tensor, "queries width"], passages: Float[Tensor, "passages width"], ids: BatchIds
) -> None:
    """Raise `LossInputError` if the embeddings and ids of one worker do not agree; the message quotes them."""
    if queries.ndim != 2 or passages.ndim != 2 or queries.shape[1] != passages.shape[1]:
        raise LossInputError(
            f"query embeddings {tuple(queries.shape)} and passage embeddings {tuple(passages.shape)}",
            remedy="both need two dimensions and the same width",
        )
    if not queries.is_floating_point() or queries.dtype != passages.dtype:
        raise LossInputError(
            f"query embeddings are {queries.dtype}, passage embeddings {passages.dtype}",
            remedy="give both one floating type",
        )
    for name, table, rows in (
        ("ids.queries", ids.queries, queries),
        ("ids.positives", ids.positives, queries),
        ("ids.passages", ids.passages, passages),
        ("ids.known", ids.known, queries),
        ("ids.teacher", None if ids.teacher is None else ids.teacher.documents, queries),
    ):
        if table is not None and table.shape[0] != rows.shape[0]:
            raise LossInputError(
                f"{table.shape[0]} rows for {rows.shape[0]} embeddings", name, "give one row an embedding"
            )
    if bool((ids.passages < 0).any()):
        raise LossInputError(f"{int(ids.passages.min())} is not an id", "ids.passages", "ids start at 0")
    lacking = (ids.positives < 0).all(1)
    if bool(lacking.any()):
        raise LossInputError(
            f"query id {int(ids.queries[lacking][0])} has no positive",
            "ids.positives",
            "give every query one",
        )
    if ids.teacher is not None:
        _check_teacher(ids.teacher)
    for name, embeddings in (("query", queries), ("passage", passages)):
        finite = torch.isfinite(embeddings).all(1)
        if not bool(finite.all()):
            raise LossInputError(
                f"{int((~finite).sum())} of {len(finite)} {name} embeddings hold NaN or infinity, "
                f"the first in row {int((~finite).nonzero()[0])}",
                remedy="check whether the encoder has diverged or half precision overflows",
            )


def _check_teacher(teacher: TeacherScores) -> None:
    if teacher.scores.shape != teacher.documents.shape:
        raise LossInputError(
            f"{tuple(teacher.scores.shape)} scores for {tuple(teacher.documents.shape)} documents", "ids.teacher"
        )
    if bool(torch.isinf(teacher.scores).any()):
        raise LossInputError("a score is infinite", "ids.teacher", "give finite scores, NaN where there is none")


@dataclass(frozen=True)
class Candidates:
    """Embeddings and index lists of one worker's rows of the score matrix, without the scores.

    Args:
        queries: embedding of each row.
        embeddings: embedding of every distinct candidate of the global batch.
        positives: columns of each row's positives, `PAD` in empty slots, no column twice in a row.
        excluded_rows: row of each pair that is no negative (a positive or known positive), ascending.
        excluded_columns: column of each such pair.
        rows: number of rows over all workers.
        negatives: number of negative pairs over all workers.
        group: columns of each row's own group with a teacher score, `PAD` in empty slots, no column twice in a row.
        teacher: the teacher's scores of the group; None, like `group`, without a teacher.
        largest_score: upper bound of every |score| / tau over all workers.
    """

    queries: Float[Tensor, "rows width"]
    embeddings: Float[Tensor, "candidates width"]
    positives: Int64[Tensor, "rows positives"]
    excluded_rows: Int64[Tensor, " excluded"]
    excluded_columns: Int64[Tensor, " excluded"]
    rows: int
    negatives: int
    group: Int64[Tensor, "rows group"] | None = None
    teacher: Float[Tensor, "rows group"] | None = None
    largest_score: float = torch.inf

    @property
    def is_positive(self) -> Bool[Tensor, "rows positives"]:
        """True in the slots of `positives` that hold a column."""
        return self.positives != PAD


class Distinct:
    """Distinct ids of a list, in the order of their first occurrence, with a column number each."""

    def __init__(self, ids: Int64[Tensor, " items"]) -> None:
        order = torch.argsort(ids, stable=True)
        ordered = ids[order]
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        self._ids = ordered[first]
        positions = order[first]
        self.positions = positions.sort().values
        self._columns = torch.searchsorted(self.positions, positions)
        self.repeats = len(self.positions) < len(ids)

    def columns(self, ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Return the column of each id, `PAD` for an id that does not occur."""
        index = torch.searchsorted(self._ids, ids).clamp_(max=len(self._ids) - 1)
        return torch.where(self._ids[index] == ids, self._columns[index], PAD)

    def keep(self, rows: Tensor) -> Tensor:
        """Return the rows at the first occurrence of each id."""
        return rows.index_select(0, self.positions) if self.repeats else rows


def mask_repeats(columns: Int64[Tensor, "rows positives"]) -> Int64[Tensor, "rows positives"]:
    """Return the same columns in the same order, with every later repeat in a row replaced by `PAD`."""
    earlier = (columns[:, :, None] == columns[:, None, :]).tril(-1).any(2)
    return columns.masked_fill(earlier, PAD)


def find_pairs(columns: Int64[Tensor, "rows some"]) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
    """Return the (row, column) of every column that is not `PAD`, ascending by row, then column."""
    rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)[columns != PAD]
    used = columns[columns != PAD]
    order = torch.argsort(used, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    return rows[order], used[order]


def gather_candidates(
    queries: Float[Tensor, "queries width"],
    passages: Float[Tensor, "passages width"],
    ids: BatchIds,
    workers: Workers,
) -> Candidates:
    """Gather the passages of all workers. The gradient of a passage returns to the worker that encoded it."""
    shapes = workers.gather_values(torch.tensor([[len(queries), len(passages)]], device=queries.device))
    if bool((shapes != shapes[:1]).any()):
        raise LossInputError(
            f"(queries, passages) differ between workers: {shapes.tolist()}",
            remedy="give all workers equal numbers",
        )
    distinct = Distinct(workers.gather_values(ids.passages))
    columns = distinct.columns(ids.positives)
    missing = (columns == PAD) & (ids.positives != PAD)
    if bool(missing.any()):
        raise LossInputError(
            f"document {int(ids.positives[missing][0])} is a positive but not among the passages",
            "ids.positives",
            "add it to the passages of the batch",
        )
    columns = mask_repeats(columns)
    excluded = columns
    if ids.known is not None:
        excluded = mask_repeats(torch.cat([columns, distinct.columns(ids.known)], 1))
    excluded_rows, excluded_columns = find_pairs(excluded)
    rows = len(queries) * workers.size
    excluded_pairs = int(workers.sum(torch.tensor(len(excluded_rows), device=queries.device)))
    negatives = rows * len(distinct.positions) - excluded_pairs
    if negatives == 0:
        raise LossInputError(
            f"the batch has no negatives: {rows} queries, {len(distinct.positions)} distinct documents, and every "
            "pair of them is a positive or a known positive",
            remedy="use a larger batch or hard negatives",
        )
    group = None
    if ids.teacher is not None:
        group = mask_repeats(distinct.columns(ids.teacher.documents).masked_fill(ids.teacher.scores.isnan(), PAD))
    return Candidates(
        queries=queries,
        embeddings=distinct.keep(workers.gather(passages)),
        positives=columns,
        excluded_rows=excluded_rows,
        excluded_columns=excluded_columns,
        rows=rows,
        negatives=negatives,
        group=group,
        teacher=None if ids.teacher is None else ids.teacher.scores,
    )
