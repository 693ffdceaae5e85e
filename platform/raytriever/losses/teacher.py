"""Losses that learn the scores of a teacher (`kl`, `margin_mse`).

A teacher scores only each query's own group, its positives and its own hard negatives, and not every query with every
passage of the batch. Passages without a teacher score are left out on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from raytriever.losses.batch import PAD, Candidates
from raytriever.losses.distributed import WorkerGroup


@dataclass(frozen=True)
class OwnGroup:
    """Scores of the rows' own groups in double precision, 0 in empty slots.

    Args:
        student: scores in units of the temperature, differentiable.
        teacher: scores in units of the teacher's temperature.
        is_scored: slots that have both scores.
        is_positive, is_negative, passages: as in `TeacherGroup`.
    """

    student: Float64[Tensor, "rows group"]
    teacher: Float64[Tensor, "rows group"]
    is_scored: Bool[Tensor, "rows group"]
    is_positive: Bool[Tensor, "rows group"]
    is_negative: Bool[Tensor, "rows group"]
    passages: int

    @classmethod
    def of(cls, batch: Candidates, teacher_temperature: float) -> OwnGroup:
        """Return the groups of this worker's rows, in a batch with teacher scores."""
        group = batch.relevance.group
        assert group is not None
        is_scored = group.columns != PAD
        passages = batch.embeddings[group.columns.clamp(min=0)]
        student = (batch.scaled_queries[:, None, :] * passages).sum(2).double()
        teacher = group.scores.double() / teacher_temperature
        return cls(
            student.masked_fill(~is_scored, 0),
            teacher.masked_fill(~is_scored, 0),
            is_scored,
            group.is_positive,
            group.is_negative,
            group.passages,
        )

    def statistics(self, workers: WorkerGroup) -> dict[str, Tensor]:
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
        passages, scored, pairs, agreed = workers.all_reduce(counts)
        return {
            "teacher_missing": 1 - scored / passages.clamp(min=1),
            "teacher_agreement": torch.where(pairs > 0, agreed / pairs.clamp(min=1), 0.5),
        }


# ----------------------------------------------------------------------------------------------------------- the losses


def kl(group: OwnGroup, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return this worker's share of the KL divergence over the group, in double precision.

        value = sum over the group of p_teacher (log p_teacher - log p_student),
        p_student = softmax(s / tau),  p_teacher = softmax(t / teacher_temperature)

    ColBERTv2 (Santhanam et al., 2022, arXiv:2112.01488, section 3.2) learns from a cross-encoder in this way. A list of
    passages for each query, instead of pairs, comes from RocketQAv2 (Ren et al., 2021, arXiv:2110.07367). Softened
    distributions come from Hinton et al. (2015, arXiv:1503.02531). Passages of other queries are not used. The mean is
    over the queries with two or more passages that the teacher has scored, because the distribution of a single passage
    is constant; 0 if there is no such query.
    """
    has_distribution = group.is_scored.sum(1) > 1
    outside = ~group.is_scored & has_distribution[:, None]
    student, teacher = (
        scores.masked_fill(outside, -torch.inf).log_softmax(1).masked_fill(outside, 0)
        for scores in (group.student, group.teacher)
    )
    values = (teacher.exp() * (teacher - student)).masked_fill(outside, 0).sum(1)
    return values.masked_fill(~has_distribution, 0).sum() / workers.all_reduce(has_distribution.sum()).clamp(min=1)


def margin_mse(group: OwnGroup, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return this worker's share of MarginMSE, in double precision; 0 if there is no pair.

        value = mean of ((s_p - s_n) / tau - (t_p - t_n) / teacher_temperature)^2 over pairs (p, n) of a query's group

    The student learns the teacher's margins between positives and hard negatives (Hofstätter et al., 2020,
    arXiv:2010.02666). With dot products and both temperatures 1 it is the loss of the paper. Margins of cosines are at
    most 2 and those of a teacher about 10: tau scales the first to the second.
    """
    difference = group.student - group.teacher
    pairs = group.is_positive[:, :, None] & group.is_negative[:, None, :]
    errors = torch.where(pairs, difference[:, :, None] - difference[:, None, :], 0).square()
    return errors.sum() / workers.all_reduce(pairs.sum()).clamp(min=1)
