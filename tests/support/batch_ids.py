"""Ids of one worker's batch as tests write them, and losses that gather them from all workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from raytriever.losses import build_loss as registry
from raytriever.losses.batch_and_temperature import PAD, RowRelevance, copy_all
from raytriever.losses.batch_relevance import GlobalIds, find_relevance
from raytriever.losses.distributed import ALONE, WorkerGroup
from raytriever.losses.false_negative_mask import GuideEmbeddings
from raytriever.losses.loss import Loss, LossOutput
from raytriever.losses.loss_settings import LossConfig


@dataclass(frozen=True)
class TeacherScores:
    """A teacher's scores, or labels, of documents, [queries, group]; `PAD` in empty slots, NaN without a score."""

    documents: Tensor
    scores: Tensor


@dataclass(frozen=True)
class BatchIds:
    """Ids of queries, of positives and known positives, [queries, some], and of passages; `PAD` in empty slots."""

    queries: Tensor
    positives: Tensor
    passages: Tensor
    known: Tensor | None = None
    seed: int = 0
    step: int = 0
    teacher: TeacherScores | None = None
    labels: TeacherScores | None = None

    def map(self, copy: Callable[[Tensor], Tensor]) -> BatchIds:
        """Stay on the CPU; see `Batch.map`."""
        return self

    def relevance(
        self, workers: WorkerGroup = ALONE, device: torch.device | str = "cpu", symmetric: bool = True
    ) -> RowRelevance:
        """Return the relevance on a device; all workers call it, with equal numbers of queries and passages."""
        known = self.positives[:, :0] if self.known is None else self.known
        dims = workers.all_reduce(torch.tensor([self.positives.shape[1], known.shape[1]]), "max").tolist()
        positives, known = (
            workers.all_gather(functional.pad(table.cpu(), (0, dim - table.shape[1]), value=PAD)).numpy()
            for table, dim in zip((self.positives, known), dims, strict=True)
        )
        rows, slots = np.nonzero(known != PAD)
        queries, passages = (workers.all_gather(ids.cpu()).numpy() for ids in (self.queries, self.passages))
        ids = GlobalIds(queries, positives, passages, rows, known[rows, slots], self.seed, self.step)
        teacher, labels = (
            item and (item.documents.numpy(), item.scores.numpy()) for item in (self.teacher, self.labels)
        )
        found = find_relevance(ids, workers.rank, workers.size, teacher, symmetric, labels)
        return copy_all(found.map, torch.device(device))


class _GatheringLoss(Loss):
    def forward(
        self,
        queries: Tensor,
        passages: Tensor,
        ids: BatchIds | RowRelevance,
        workers: WorkerGroup = ALONE,
        guide: GuideEmbeddings | None = None,
    ) -> LossOutput:
        if isinstance(ids, BatchIds):
            ids = ids.relevance(workers, queries.device, self.config.symmetric)
        return super().forward(queries, passages, ids, workers, guide)


def build_loss(config: LossConfig, unit_length: bool = False) -> Loss:
    """Return the loss that the settings name, which takes `BatchIds` too."""
    loss = registry.build_loss(config, unit_length)
    loss.__class__ = _GatheringLoss
    return loss
