"""Global batch, seen from one worker: its own queries, and every distinct document of all workers.

`RowRelevance` has the index lists that follow from the ids of all workers (see `batch_relevance`). `Candidates` adds
the embeddings and the temperature. `copy_all` moves all tensors to a GPU in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from raytriever.core.errors import LossInputError
from raytriever.losses.distributed import WorkerGroup

T = TypeVar("T")
PAD = -1
_ALIGNMENT = 16  # alignment in bytes of the tensors within the buffer that `copy_together` copies


@dataclass(frozen=True)
class TeacherGroup:
    """Scores by a teacher, or graded relevance from 0 to 1, of the passages in each row's own group."""

    # Columns of the scored passages, `PAD` in empty slots. A row contains a column at most once.
    columns: Int64[Tensor, "rows group"]
    scores: Float[Tensor, "rows group"]  # the teacher's scores, or the labels
    is_positive: Bool[Tensor, "rows group"]  # True in the slots of positives of the query
    # True in the slots of negatives: neither positives of the row nor known positives.
    is_negative: Bool[Tensor, "rows group"]
    passages: int  # number of passages in the groups of all rows, with and without a score

    @property
    def is_scored(self) -> Bool[Tensor, "rows group"]:
        """True in the slots that have a score."""
        return self.columns != PAD

    def map(self, copy: Callable[[Tensor], Tensor]) -> TeacherGroup:
        """Return the group with each tensor replaced by `copy(tensor)`."""
        return TeacherGroup(
            copy(self.columns), copy(self.scores), copy(self.is_positive), copy(self.is_negative), self.passages
        )


@dataclass(frozen=True)
class RowRelevance:
    """Index lists of one worker's rows of the score matrix."""

    queries: Int64[Tensor, " rows"]  # id of each row
    passages: Int64[Tensor, " passages"]  # document id of each of this worker's passages, including repeats
    # Position of each candidate among the passages of all workers; None if no passage occurs twice.
    distinct: Int64[Tensor, " candidates"] | None
    # Columns of each row's positives, `PAD` in empty slots. A row contains a column at most once.
    positives: Int64[Tensor, "rows positives"]
    # Row of each pair that is not a negative (a positive or a known positive), ascending.
    excluded_rows: Int64[Tensor, " excluded"]
    excluded_columns: Int64[Tensor, " excluded"]  # column of each such pair
    # Index of the first such pair of each row. The last entry is the number of all such pairs. Always on the CPU.
    excluded_starts: Int64[ndarray, " rows+1"]
    rows: int  # number of rows of all workers together
    negatives: int  # number of negative pairs of all workers together
    positive_pairs: int  # number of positive pairs of all workers together
    seed: int = 0  # seed of the run
    step: int = 0  # number of the optimizer step; `rand1` samples by (seed, step, query id)
    group: TeacherGroup | None = None  # teacher scores of the group of each row; None without a teacher
    labels: TeacherGroup | None = None  # graded relevance of each row's own group; None for binary relevance
    # The relevance of the other direction, where passages search for queries. Its rows are the first positives of this
    # worker's queries. Its candidates are the distinct queries of all workers. None if no loss needs it.
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
        """The positives' columns, with column 0 in empty slots, so that the tensor can be used as an index."""
        return self.positives if self.is_full else self.positives.clamp(min=0)

    def keep(self, passages: Tensor) -> Tensor:
        """Select the candidates from the passages (or queries) of all workers."""
        return passages if self.distinct is None else passages.index_select(0, self.distinct)

    def map(self, copy: Callable[[Tensor], Tensor]) -> RowRelevance:
        """Return the relevance with each tensor replaced by `copy(tensor)`, always in the same order."""
        return replace(
            self,
            queries=copy(self.queries),
            passages=copy(self.passages),
            distinct=None if self.distinct is None else copy(self.distinct),
            positives=copy(self.positives),
            excluded_rows=copy(self.excluded_rows),
            excluded_columns=copy(self.excluded_columns),
            group=self.group and self.group.map(copy),
            labels=self.labels and self.labels.map(copy),
            exchanged=self.exchanged and self.exchanged.map(copy),
        )


@dataclass(frozen=True)
class Candidates:
    """Embeddings and index lists of one worker's rows of the score matrix, without the scores."""

    queries: Float[Tensor, "rows dim"]  # embedding of each row
    embeddings: Float[Tensor, "candidates dim"]  # embedding of every distinct candidate of the global batch
    relevance: RowRelevance  # positives of each row, and pairs that are not negatives
    log_temperature: Float[Tensor, ""]  # logarithm of the temperature tau
    largest_score: float = torch.inf  # upper bound of |score| / tau over all scores of all workers
    bias: Float[Tensor, ""] | None = None  # bias that `bce` adds to every score, in units of tau; None without `bce`

    @property
    def scaled_queries(self) -> Float[Tensor, "rows dim"]:
        """Queries divided by tau. Losses compute every score with them; training applies tau only here."""
        return self.queries * torch.exp(-self.log_temperature)

    def exchange_roles(self, workers: WorkerGroup) -> Candidates:
        """Return the batch of the other direction, in which passages search for their queries. All workers call this.

        The rows are the first positives of this worker's queries. The candidates are all workers' distinct queries.
        If a passage is a positive or known positive of a query, the query is never a negative of the passage, even if
        different workers have the two."""
        relevance = self.relevance.exchanged
        assert relevance is not None
        return replace(
            self,
            # Use `embedding`, not indexing: its backward pass adds in a fixed order on every device.
            queries=functional.embedding(first_positive(self.relevance)[:, 0], self.embeddings),
            embeddings=relevance.keep(workers.all_gather(self.queries)),
            relevance=relevance,
        )


def first_positive(relevance: RowRelevance) -> Int64[Tensor, "rows one"]:
    """Return the column of each query's first positive."""
    return relevance.positives.gather(1, relevance.is_positive.int().argmax(1, keepdim=True))


def check_batch(
    queries: Float[Tensor, "queries dim"], passages: Float[Tensor, "passages dim"], relevance: RowRelevance
) -> None:
    """Raise `LossInputError` if the shapes and types of one worker's embeddings and ids do not agree."""
    if queries.ndim != 2 or passages.ndim != 2 or queries.shape[1] != passages.shape[1]:
        raise LossInputError(
            f"the embeddings have shapes that do not fit: {tuple(queries.shape)} and {tuple(passages.shape)}",
            remedy="give queries and passages as two tensors [texts, dim] with equal dim",
        )
    if not queries.is_floating_point() or queries.dtype != passages.dtype:
        raise LossInputError(
            f"query embeddings are {queries.dtype}, but passage embeddings are {passages.dtype}",
            remedy="use the same floating-point dtype for both",
        )
    counts, expected = (len(queries), len(passages)), (len(relevance.queries), len(relevance.passages))
    if counts != expected:
        raise LossInputError(
            f"there are {counts[0]} query and {counts[1]} passage embeddings for {expected[0]} and {expected[1]} ids",
            remedy="give one embedding for each id",
        )


def copy_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy CPU tensors to a GPU in one asynchronous copy of pinned memory. The copies share one storage."""
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
    """Return an object with all its tensors on `device`. A GPU gets them in one copy.

    Args:
        transform: `map` method of the object. It replaces each tensor by the result of a function, always in the same
            order. For a GPU it is called twice; the first call collects the tensors.
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
