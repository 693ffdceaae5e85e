"""The batch of step t as tensors: this worker's queries, its passages, and who they are.

A worker's passages are its queries' groups, one after another: positives, then hard negatives. Everything is
computed from (data, seed, t) on the spot, so there is no iterator whose position could be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy import ndarray

from raytriever.data.dataset import Tokens
from raytriever.data.examples import Examples
from raytriever.data.negatives_table import NegativesTable
from raytriever.data.order import Order, worker_slice
from raytriever.data.teacher_table import TeacherTable
from raytriever.losses.batch import PAD, BatchIds, TeacherScores
from raytriever.losses.workers import Workers
from raytriever.models.buckets import Buckets
from raytriever.models.retriever import Retriever


@dataclass(frozen=True)
class Batch:
    """One worker's share of a global batch; `version` tells the tables of hard negatives it may draw from apart."""

    queries: Buckets
    passages: Buckets
    ids: BatchIds
    version: int = 0

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        known = None if self.ids.known is None else self.ids.known.to(device)
        teacher = self.ids.teacher
        ids = BatchIds(
            self.ids.queries.to(device),
            self.ids.positives.to(device),
            self.ids.passages.to(device),
            known,
            self.ids.seed,
            self.ids.step,
            teacher and TeacherScores(teacher.documents.to(device), teacher.scores.to(device)),
        )
        return Batch(self.queries.to(device), self.passages.to(device), ids, self.version)


@dataclass(frozen=True)
class BatchSource:
    """Makes any batch of a split on any worker.

    Args:
        tokens: of queries and documents by position, made for the retriever that will read them.
        examples: the split's examples.
        order: which examples a step holds.
        positives_per_query: positives of a query's group, at most.
        negatives_per_query: hard negatives of a query's group; more where the query has fewer positives.
        version: of its hard negatives.
        teacher: scores of the pairs of a group; None where nobody was asked.
    """

    tokens: Tokens
    examples: Examples
    order: Order
    positives_per_query: int
    negatives_per_query: int
    version: int = 0
    teacher: TeacherTable | None = None

    def with_negatives(self, negatives: NegativesTable, version: int) -> BatchSource:
        """The same but for the hard negatives: the same order, queries, positives, and draws for each purpose."""
        return replace(self, examples=replace(self.examples, negatives=negatives), version=version)

    def batch(self, step: int, retriever: Retriever, workers: Workers) -> Batch:
        """The share of this worker in the global batch of `step`."""
        chosen = worker_slice(self.order.batch(step), workers.rank, workers.size)
        epochs = worker_slice(self.order.epochs(step), workers.rank, workers.size)
        queries = self.examples.queries(chosen)
        positives, groups = self.examples.groups(chosen, epochs, self.positives_per_query, self.negatives_per_query)
        passages = groups.reshape(-1)
        ids = BatchIds(
            queries=torch.from_numpy(queries),
            positives=torch.from_numpy(positives),
            passages=torch.from_numpy(passages),
            known=torch.from_numpy(_padded([self.examples.positives.of(int(row)) for row in chosen])),
            seed=self.order.seed,
            step=step,
            teacher=self._scored(queries, groups),
        )
        return Batch(
            retriever.batch_of(self.tokens.queries.take(queries), "query"),
            retriever.batch_of(self.tokens.documents.take(passages), "passage"),
            ids,
            self.version,
        )

    def _scored(self, queries: ndarray, groups: ndarray) -> TeacherScores | None:
        if self.teacher is None:
            return None
        scores = self.teacher.of_groups(queries, groups)
        return TeacherScores(torch.from_numpy(groups), torch.from_numpy(scores))


def _padded(rows: Sequence[ndarray]) -> ndarray:
    """Rows of unequal length as one array, `PAD` behind the short ones."""
    padded = np.full((len(rows), max(len(row) for row in rows)), PAD, np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded
