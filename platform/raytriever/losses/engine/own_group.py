"""Each query's own group, its positives and its own hard negatives, as student and teacher score it.

A teacher is asked about these pairs alone, not about every query and every passage of the batch. Passages it has no
score of are left out on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from raytriever.losses.engine.batch import PAD, BatchIds, Candidates
from raytriever.losses.engine.workers import Workers


@dataclass(frozen=True)
class OwnGroup:
    """Scores of the rows' own groups in double precision, 0 where nothing stands.

    Args:
        student: in units of the temperature, differentiable.
        teacher: in units of the teacher's temperature.
        held: where both have one.
        positive: where it is of a positive of the query.
        negative: where it is of a negative: no positive, and not known to be one.
    """

    student: Float64[Tensor, "rows group"]
    teacher: Float64[Tensor, "rows group"]
    held: Bool[Tensor, "rows group"]
    positive: Bool[Tensor, "rows group"]
    negative: Bool[Tensor, "rows group"]

    @classmethod
    def of(cls, batch: Candidates, ids: BatchIds, log_temperature: Tensor, teacher_temperature: float) -> OwnGroup:
        """The groups of this worker's rows, where a teacher was asked.

        Args:
            batch: whose embeddings are multiplied: as much memory again as this worker's own passages take.
            ids: who is positive.
            log_temperature: of the student.
            teacher_temperature: of the teacher.
        """
        assert batch.group is not None
        assert batch.teacher is not None
        assert ids.teacher is not None
        held = batch.group != PAD
        passages = batch.embeddings[batch.group.clamp(min=0)]
        student = ((batch.queries * torch.exp(-log_temperature))[:, None, :] * passages).sum(2).double()
        teacher = batch.teacher.double() / teacher_temperature
        positive = _among(ids.teacher.documents, ids.positives)
        known = positive if ids.known is None else positive | _among(ids.teacher.documents, ids.known)
        return cls(student.masked_fill(~held, 0), teacher.masked_fill(~held, 0), held, held & positive, held & ~known)

    def statistics(self, ids: BatchIds, workers: Workers) -> dict[str, Tensor]:
        """Over all workers: the share of passages without a score, and of scored pairs of one group, told apart by the
        teacher, the share that the student orders as it does, ties counted half."""
        assert ids.teacher is not None
        first = torch.ones_like(self.held)
        same = ids.teacher.documents[:, :, None] == ids.teacher.documents[:, None, :]
        first &= ~same.tril(-1).any(2) & (ids.teacher.documents != PAD)
        with torch.no_grad():
            both = self.held[:, :, None] & self.held[:, None, :]
            wanted = torch.where(both, self.teacher[:, :, None] - self.teacher[:, None, :], 0).sign()
            found = (self.student[:, :, None] - self.student[:, None, :]).sign()
            agreed = ((wanted * found + 1) / 2)[wanted != 0].sum()
            counts = torch.stack([first.sum(), self.held.sum(), (wanted != 0).sum(), agreed])
        passages, scored, pairs, right = workers.sum(counts)
        return {
            "teacher_missing": 1 - scored / passages.clamp(min=1),
            "teacher_agreement": torch.where(pairs > 0, right / pairs.clamp(min=1), 0.5),
        }


def _among(documents: Tensor, of: Tensor) -> Bool[Tensor, "rows group"]:
    """Whether each document of a row is among some others of the same row."""
    return (documents[:, :, None] == of[:, None, :]).any(2) & (documents != PAD)
