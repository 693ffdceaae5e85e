"""Who is whose positive in one worker's part of the global batch, by document id; boundary checks.

Every loss reads relevance from these ids alone: a document is a query's positive wherever in the batch it
stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from raytriever.errors import LossInputError

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
