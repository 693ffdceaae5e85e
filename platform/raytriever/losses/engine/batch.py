"""Global batch, seen from one worker: its own queries against every distinct document of all workers.

Its tensors go to a GPU in one copy (`copy_all`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from raytriever.errors import LossInputError
from raytriever.losses.engine.relevance import PAD, GlobalIds, RowRelevance, find_relevance
from raytriever.losses.engine.workers import WorkerGroup

T = TypeVar("T")
_ALIGNMENT = 16  # bytes; of each tensor in the one that is copied to a GPU


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
    """Ids of the queries and passages of one worker, on any device; `PAD` (-1) fills rows of unequal length.

    Args:
        queries: one id for each query; `rand1` draws by (seed, step, query id).
        positives: document ids of each query's positives, in the order of its group.
        passages: document ids of this worker's passages: positives and hard negatives.
        known: further known positives of each query. They are neither negatives nor positives here.
        seed: seed of the run.
        step: number of the optimiser step.
        teacher: a teacher's scores of each query's own group; None without a teacher.
        relevance: what follows from the ids of all workers, on the device of the embeddings; None to work it out in
            the loss, which then gathers the ids.
    """

    queries: Int64[Tensor, " queries"]
    positives: Int64[Tensor, "queries positives"]
    passages: Int64[Tensor, " passages"]
    known: Int64[Tensor, "queries known"] | None = None
    seed: int = 0
    step: int = 0
    teacher: TeacherScores | None = None
    relevance: RowRelevance | None = None


def check_batch(
    queries: Float[Tensor, "queries width"], passages: Float[Tensor, "passages width"], ids: BatchIds
) -> None:
    """Raise `LossInputError` if the shapes and types of one worker do not agree; the message quotes them."""
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


@dataclass(frozen=True)
class Candidates:
    """Embeddings and index lists of one worker's rows of the score matrix, without the scores.

    Args:
        queries: embedding of each row.
        embeddings: embedding of every distinct candidate of the global batch.
        relevance: positives of each row, and pairs that are no negatives.
        largest_score: upper bound of every |score| / tau over all workers.
    """

    queries: Float[Tensor, "rows width"]
    embeddings: Float[Tensor, "candidates width"]
    relevance: RowRelevance
    largest_score: float = torch.inf


def gather_candidates(
    queries: Float[Tensor, "queries width"],
    passages: Float[Tensor, "passages width"],
    ids: BatchIds,
    workers: WorkerGroup,
    both_ways: bool = False,
    sent: torch.dtype | None = None,
) -> Candidates:
    """Gather the passages of all workers. The gradient of a passage returns to the worker that encoded it.

    Args:
        queries, passages: embeddings of this worker.
        ids: of queries and passages. Their relevance is worked out where it is missing.
        workers: the group.
        both_ways: whether passages search for queries too.
        sent: type of the passages on their way; see `Workers.gather`.
    """
    relevance = ids.relevance
    if relevance is None or (both_ways and relevance.exchanged is None):
        relevance = gather_relevance(ids, workers, queries.device, both_ways)
    return Candidates(queries, relevance.keep(workers.gather(passages, sent)), relevance)


def gather_relevance(
    ids: BatchIds, workers: WorkerGroup, device: torch.device, both_ways: bool = False
) -> RowRelevance:
    """Return the relevance on a device, from the ids of all workers; all workers call it.

    Args:
        ids: of this worker.
        workers: the group.
        device: of the embeddings; the collectives take their tensors there.
        both_ways: whether passages search for queries too.

    Raises:
        LossInputError: the workers have unequal numbers of queries or passages, or as `find_relevance`.
    """
    known = ids.positives[:, :0] if ids.known is None else ids.known
    sizes = [[len(ids.queries), len(ids.passages), ids.positives.shape[1], known.shape[1]]]
    if workers.size > 1:
        sizes = workers.gather_values(torch.tensor(sizes, device=device)).tolist()
    shapes = [size[:2] for size in sizes]
    if any(shape != shapes[0] for shape in shapes):
        raise LossInputError(
            f"(queries, passages) differ between workers: {shapes}", remedy="give all workers equal numbers"
        )
    (rows, passages), widths = shapes[0], np.max([size[2:] for size in sizes], 0).tolist()
    tables = [
        functional.pad(table, (0, width - table.shape[1]), value=PAD).flatten()
        for table, width in zip((ids.positives, known), widths, strict=True)
    ]
    own = torch.cat([ids.queries, ids.passages, *tables])
    everyone = (workers.gather_values(own.to(device)) if workers.size > 1 else own).cpu().numpy()
    lengths = [rows, passages, rows * widths[0], rows * widths[1]]
    parts = np.split(everyone.reshape(workers.size, -1), np.cumsum(lengths)[:-1], axis=1)
    known_table = parts[3].reshape(rows * workers.size, widths[1])
    known_rows, slots = np.nonzero(known_table != PAD)
    everyones = GlobalIds(
        parts[0].reshape(-1),
        parts[2].reshape(rows * workers.size, widths[0]),
        parts[1].reshape(-1),
        known_rows,
        known_table[known_rows, slots],
    )
    relevance = find_relevance(everyones, workers.rank, workers.size, teacher_arrays(ids.teacher), both_ways)
    return copy_all(relevance.map, device)


def teacher_arrays(teacher: TeacherScores | None) -> tuple[ndarray, ndarray] | None:
    """Return documents and scores as arrays in the memory of the CPU."""
    return None if teacher is None else (teacher.documents.cpu().numpy(), teacher.scores.cpu().numpy())


def copy_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return copies of tensors of the CPU on a GPU, made by one copy of pinned memory that nobody waits for.

    The copies share one storage.
    """
    sizes = [-(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    for tensor, piece in zip(tensors, pinned.split(sizes), strict=True):
        piece[: tensor.numel() * tensor.element_size()].view(tensor.dtype).copy_(tensor.reshape(-1))
    pieces = pinned.to(device, non_blocking=True).split(sizes)
    return [
        piece[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        for tensor, piece in zip(tensors, pieces, strict=True)
    ]


def copy_all(transform: Callable[[Callable[[Tensor], Tensor]], T], device: torch.device) -> T:
    """Return what `transform` makes of copies of its tensors on a device; to a GPU all go in one copy.

    Args:
        transform: calls its argument with each tensor, always in the same order, and uses the result in its place.
        device: of the copies.
    """
    if device.type != "cuda":
        return transform(lambda tensor: tensor.to(device))
    tensors = list[Tensor]()

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    transform(collect)
    copies = iter(copy_together(tensors, device))
    return transform(lambda _: next(copies))
