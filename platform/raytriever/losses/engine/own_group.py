"""Scores of student and teacher for each query's own group: its positives and its own hard negatives.

A teacher scores only these pairs, not every query with every passage of the batch. Passages without a teacher score are
left out on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from raytriever.losses.engine.batch import Candidates
from raytriever.losses.engine.relevance import PAD
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
        passages: number of passages of all rows' groups.
    """

    student: Float64[Tensor, "rows group"]
    teacher: Float64[Tensor, "rows group"]
    is_scored: Bool[Tensor, "rows group"]
    is_positive: Bool[Tensor, "rows group"]
    is_negative: Bool[Tensor, "rows group"]
    passages: int

    @classmethod
    def of(cls, batch: Candidates, log_temperature: Tensor, teacher_temperature: float) -> OwnGroup:
        """Return the groups of this worker's rows, in a batch with teacher scores.

        Args:
            batch: embeddings and teacher scores. The product needs as much memory as this worker's passages.
            log_temperature: log of the student's temperature.
            teacher_temperature: temperature of the teacher.
        """
        group = batch.relevance.group
        assert group is not None
        is_scored = group.columns != PAD
        passages = batch.embeddings[group.columns.clamp(min=0)]
        student = ((batch.queries * torch.exp(-log_temperature))[:, None, :] * passages).sum(2).double()
        teacher = group.scores.double() / teacher_temperature
        return cls(
            student.masked_fill(~is_scored, 0),
            teacher.masked_fill(~is_scored, 0),
            is_scored,
            group.is_positive,
            group.is_negative,
            group.passages,
        )

    def statistics(self, workers: Workers) -> dict[str, Tensor]:
        """Return two shares over all workers.

        `teacher_missing` is the share of passages without a teacher score. `teacher_agreement` is the share of pairs
        of one group that student and teacher order alike, among pairs whose teacher scores differ. Ties of the student
        count one half; without such a pair it is 0.5.
        """
        with torch.no_grad():
            both = self.is_scored[:, :, None] & self.is_scored[:, None, :]
            by_teacher = torch.where(both, self.teacher[:, :, None] - self.teacher[:, None, :], 0).sign()
            by_student = (self.student[:, :, None] - self.student[:, None, :]).sign()
            is_pair = by_teacher != 0
            agreed = ((by_teacher * by_student + 1) / 2 * is_pair).sum()
            counts = torch.stack([torch.full_like(agreed, self.passages), self.is_scored.sum(), is_pair.sum(), agreed])
        passages, scored, pairs, agreed = workers.sum(counts)
        return {
            "teacher_missing": 1 - scored / passages.clamp(min=1),
            "teacher_agreement": torch.where(pairs > 0, agreed / pairs.clamp(min=1), 0.5),
        }
