"""The global batch as one worker sees it: its own queries against every distinct document of all workers.

Every loss reads relevance from document ids alone: a document is a query's positive at any position in the batch. A
document that occurs twice counts once (its first position is kept), and which (query, candidate) pairs are positives,
or known and therefore no negatives, is kept as sparse index lists found by sorting ids: nothing here has the size of
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
    """What a teacher thinks of the passages of each query's own group.

    Args:
        documents: document ids, `PAD` (-1) where a group is shorter; one that stands twice counts once.
        scores: its score of each, unbounded, higher is more relevant; NaN where it has none.
    """

    documents: Int64[Tensor, "queries group"]
    scores: Float[Tensor, "queries group"]


@dataclass(frozen=True)
class BatchIds:
    """The ids of one worker's b queries and n passages; `PAD` (-1) fills rows of unequal length.

    Args:
        queries: one id a query; `rand1` draws by (seed, step, query id).
        positives: document ids of each query's positives, in the order of its group.
        passages: document ids of this worker's passages, positives and hard negatives alike.
        known: further known positives of each query: never its negatives, nor its positives here.
        seed: the run's seed.
        step: the number of the optimiser step.
        teacher: what a teacher thinks of each query's own group; None where nobody was asked.
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
    """Hold embeddings and ids of one worker to each other; raises `LossInputError` quoting what came."""
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
                remedy="look for a diverged encoder or a half-precision overflow",
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
    """One worker's rows of the score matrix: who is in them, not yet the scores.

    Args:
        queries: this worker's query embeddings, or whatever stands for a row.
        embeddings: every distinct candidate of the global batch.
        positives: the column of each row's positives, `PAD` where there is none, no column twice in a row.
        excluded_rows: row of each pair that is no negative (a positive or known), ascending.
        excluded_columns: its column.
        rows: number of rows over all workers.
        negatives: number of negative pairs over all workers.
        group: the columns of each row's own group that a teacher has scored, `PAD` elsewhere, no column twice in a row.
        teacher: its scores of them; None, as `group` is, where no teacher was asked.
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

    @property
    def is_positive(self) -> Bool[Tensor, "rows positives"]:
        """Where `positives` holds a column."""
        return self.positives != PAD


class Distinct:
    """The distinct ids of a list, in the order of their first appearance, and where to find them."""

    def __init__(self, ids: Int64[Tensor, " items"]) -> None:
        order = torch.argsort(ids, stable=True)
        ordered = ids[order]
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        self._ids = ordered[first]
        places = order[first]
        self.places = places.sort().values
        self._columns = torch.searchsorted(self.places, places)
        self.repeats = len(self.places) < len(ids)

    def columns(self, ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The column of each id, `PAD` where it does not occur."""
        at = torch.searchsorted(self._ids, ids).clamp_(max=len(self._ids) - 1)
        return torch.where(self._ids[at] == ids, self._columns[at], PAD)

    def keep(self, rows: Tensor) -> Tensor:
        """The rows at the first appearance of each id."""
        return rows.index_select(0, self.places) if self.repeats else rows


def without_repeats(columns: Int64[Tensor, "rows positives"]) -> Int64[Tensor, "rows positives"]:
    """The same columns with every later repeat in a row replaced by `PAD`, order kept."""
    earlier = (columns[:, :, None] == columns[:, None, :]).tril(-1).any(2)
    return columns.masked_fill(earlier, PAD)


def pairs(columns: Int64[Tensor, "rows some"]) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
    """The (row, column) of everything that is not `PAD`, ascending by row, then column."""
    rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)[columns != PAD]
    held = columns[columns != PAD]
    order = torch.argsort(held, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    return rows[order], held[order]


def gather_candidates(
    queries: Float[Tensor, "queries width"],
    passages: Float[Tensor, "passages width"],
    ids: BatchIds,
    workers: Workers,
) -> Candidates:
    """Bring every worker's passages together; gradients of a passage return to the worker that encoded it."""
    shapes = workers.gather_values(torch.tensor([[len(queries), len(passages)]], device=queries.device))
    if bool((shapes != shapes[:1]).any()):
        raise LossInputError(
            f"(queries, passages) differ between workers: {shapes.tolist()}",
            remedy="give all workers as many",
        )
    distinct = Distinct(workers.gather_values(ids.passages))
    columns = distinct.columns(ids.positives)
    missing = (columns == PAD) & (ids.positives != PAD)
    if bool(missing.any()):
        raise LossInputError(
            f"document {int(ids.positives[missing][0])} is a positive but not among the passages",
            "ids.positives",
        )
    columns = without_repeats(columns)
    barred = columns
    if ids.known is not None:
        barred = without_repeats(torch.cat([columns, distinct.columns(ids.known)], 1))
    excluded_rows, excluded_columns = pairs(barred)
    rows = len(queries) * workers.size
    barred_pairs = int(workers.sum(torch.tensor(len(excluded_rows), device=queries.device)))
    negatives = rows * len(distinct.places) - barred_pairs
    if negatives == 0:
        raise LossInputError(
            f"no negatives: {rows} queries, {len(distinct.places)} distinct documents, all their positives",
            remedy="use a larger batch or hard negatives",
        )
    group = None
    if ids.teacher is not None:
        group = without_repeats(distinct.columns(ids.teacher.documents).masked_fill(ids.teacher.scores.isnan(), PAD))
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
