"""Distillation losses, with which the model learns a teacher's scores (`kl`, `margin_mse`).

A teacher scores only the group of each query: its positives and its own hard negatives, not the in-batch negatives.
Passages without a teacher score are left out of the scores of both teacher and student."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from raytriever.losses.batch_and_temperature import Candidates, TeacherGroup
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.row_losses import INFONCE, by_row
from raytriever.losses.score_matrix import PartialLoss, ScoreLoss

Scores = Float64[Tensor, "rows group"]


def by_teacher(partial: Callable[[Scores, Scores, TeacherGroup, WorkerGroup], Float[Tensor, ""]]) -> ScoreLoss:
    """Return a score loss for distillation. It is InfoNCE for batches without teacher scores, such as dev batches.

    Args:
        partial: function that returns this worker's partial loss. Its arguments are the student's scores of the
            group of each row in units of tau (differentiable), the teacher's scores in units of its temperature, the
            group, and the workers. Scores are float64, and 0 in empty slots.
    """

    def reduce(config: LossConfig, batch: Candidates, workers: WorkerGroup) -> PartialLoss:
        group = batch.relevance.group
        if group is None:
            return by_row(INFONCE)(config, batch, workers)
        passages = batch.embeddings[group.columns.clamp(min=0)]
        student = (batch.scaled_queries[:, None, :] * passages).sum(2).double().masked_fill(~group.is_scored, 0)
        teacher = (group.scores.double() / config.teacher_temperature).masked_fill(~group.is_scored, 0)
        value = partial(student, teacher, group, workers).to(batch.queries.dtype)
        return PartialLoss(value, _statistics(student, teacher, group, workers))

    return reduce


@torch.no_grad()
def _statistics(student: Scores, teacher: Scores, group: TeacherGroup, workers: WorkerGroup) -> dict[str, Tensor]:
    """Return two fractions over all workers, to log.

    `teacher_missing` is the fraction of passages without a teacher score. `teacher_agreement` is the fraction of pairs
    within a group that student and teacher order in the same way, among pairs with different teacher scores. A pair
    with equal student scores adds one half. Without pairs, the fraction is 0.5."""
    both = group.is_scored[:, :, None] & group.is_scored[:, None, :]
    by_teacher = torch.where(both, teacher[:, :, None] - teacher[:, None, :], 0).sign()
    by_student = (student[:, :, None] - student[:, None, :]).sign()
    is_pair = by_teacher != 0
    agreed = ((by_teacher * by_student + 1) / 2 * is_pair).sum()
    counts = torch.stack([torch.full_like(agreed, group.passages), group.is_scored.sum(), is_pair.sum(), agreed])
    passages, scored, pairs, agreed = workers.all_reduce(counts)
    return {
        "teacher_missing": 1 - scored / passages.clamp(min=1),
        "teacher_agreement": torch.where(pairs > 0, agreed / pairs.clamp(min=1), 0.5),
    }


# ----------------------------------------------------------------------------------------------------------- the losses


@by_teacher
def kl(student: Scores, teacher: Scores, group: TeacherGroup, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return this worker's part of the KL divergence over the group, in double precision.

        value = sum over the group of p_teacher (log p_teacher - log p_student),
        p_student = softmax(s / tau),  p_teacher = softmax(t / teacher_temperature)

    ColBERTv2 (Santhanam et al., 2022, arXiv:2112.01488, section 3.2) learns from a cross-encoder in this way.
    RocketQAv2 (Ren et al., 2021, arXiv:2110.07367) also compares the whole list of a query's passages, not pairs.
    Hinton et al. (2015, arXiv:1503.02531) soften the distributions by a temperature. Passages of other queries are not
    used.

    The loss is the mean over the queries with at least two scored passages, because the distribution over a single
    passage is constant. It is 0 if there is no such query."""
    has_distribution = group.is_scored.sum(1) > 1
    outside = ~group.is_scored & has_distribution[:, None]
    student, teacher = (
        scores.masked_fill(outside, -torch.inf).log_softmax(1).masked_fill(outside, 0) for scores in (student, teacher)
    )
    values = (teacher.exp() * (teacher - student)).masked_fill(outside, 0).sum(1)
    return values.masked_fill(~has_distribution, 0).sum() / workers.all_reduce(has_distribution.sum()).clamp(min=1)


@by_teacher
def margin_mse(student: Scores, teacher: Scores, group: TeacherGroup, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return this worker's part of MarginMSE, in double precision. It is 0 if there is no pair.

        value = mean of ((s_p - s_n) / tau - (t_p - t_n) / teacher_temperature)^2 over pairs (p, n) of a query's group

    The student learns the teacher's margins between positives and hard negatives (Hofstätter et al., 2020,
    arXiv:2010.02666). With dot products and both temperatures 1, it is the loss of the paper. Margins of cosines are at
    most 2, and a teacher's margins are about 10. So tau brings the student's margins to the teacher's scale."""
    difference = student - teacher
    pairs = group.is_positive[:, :, None] & group.is_negative[:, None, :]
    errors = torch.where(pairs, difference[:, :, None] - difference[:, None, :], 0).square()
    return errors.sum() / workers.all_reduce(pairs.sum()).clamp(min=1)
