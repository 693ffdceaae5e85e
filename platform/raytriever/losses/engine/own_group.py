"""Scores of student and teacher for each query's own group: its positives and its own hard negatives.

A teacher scores only these pairs, not every query with every passage of the batch. Passages without a teacher score are
left out on both sides.
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
    """Scores of the rows' own groups in double precision, 0 in empty slots.

    Args:
        student: scores in units of the temperature, differentiable.
        teacher: scores in units of the teacher's temperature.
        is_scored: slots that have both scores.
        is_positive: slots of positives of the query.
        is_negative: slots of passages that are neither positives nor known positives.
    """

    student: Float64[Tensor, "rows group"]
    teacher: Float64[Tensor, "rows group"]
    is_scored: Bool[Tensor, "rows group"]
    is_positive: Bool[Tensor, "rows group"]
    is_negative: Bool[Tensor, "rows group"]

    @classmethod
    def of(cls, batch: Candidates, ids: BatchIds, log_temperature: Tensor, teacher_temperature: float) -> OwnGroup:
        """Return the groups of this worker's rows, in a batch with teacher scores.

        Args:
            batch: embeddings and teacher scores. The product needs as much memory as this worker's passages.
            ids: ids of the queries' positives.
            log_temperature: log of the student's temperature.
            teacher_temperature: temperature of the teacher.
        """
        assert batch.group is not None
        assert batch.teacher is not None
        assert ids.teacher is not None
        is_scored = batch.group != PAD
        passages = batch.embeddings[batch.group.clamp(min=0)]
        student = ((batch.queries * torch.exp(-log_temperature))[:, None, :] * passages).sum(2).double()
        teacher = batch.teacher.double() / teacher_temperature
        is_positive = _are_among(ids.teacher.documents, ids.positives)
        is_known = is_positive if ids.known is None else is_positive | _are_among(ids.teacher.documents, ids.known)
        return cls(
            student.masked_fill(~is_scored, 0),
            teacher.masked_fill(~is_scored, 0),
            is_scored,
            is_scored & is_positive,
            is_scored & ~is_known,
        )

    def statistics(self, ids: BatchIds, workers: Workers) -> dict[str, Tensor]:
        """Return two shares over all workers.

        `teacher_missing` is the share of passages without a teacher score. `teacher_agreement` is the share of pairs
        of one group that student and teacher order alike, among pairs whose teacher scores differ. Ties of the student
        count one half; without such a pair it is 0.5.
        """
        assert ids.teacher is not None
        first = torch.ones_like(self.is_scored)
        same = ids.teacher.documents[:, :, None] == ids.teacher.documents[:, None, :]
        first &= ~same.tril(-1).any(2) & (ids.teacher.documents != PAD)
        with torch.no_grad():
            both = self.is_scored[:, :, None] & self.is_scored[:, None, :]
            by_teacher = torch.where(both, self.teacher[:, :, None] - self.teacher[:, None, :], 0).sign()
            by_student = (self.student[:, :, None] - self.student[:, None, :]).sign()
            agreed = ((by_teacher * by_student + 1) / 2)[by_teacher != 0].sum()
            counts = torch.stack([first.sum(), self.is_scored.sum(), (by_teacher != 0).sum(), agreed])
        passages, scored, pairs, agreed = workers.sum(counts)
        return {
            "teacher_missing": 1 - scored / passages.clamp(min=1),
            "teacher_agreement": torch.where(pairs > 0, agreed / pairs.clamp(min=1), 0.5),
        }


def _are_among(documents: Tensor, others: Tensor) -> Bool[Tensor, "rows group"]:
    """Return, for each document of a row, True if `others` contains it in the same row."""
    return (documents[:, :, None] == others[:, None, :]).any(2) & (documents != PAD)
