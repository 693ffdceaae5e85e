"""A teacher's scores in a loss, as the scores to learn (`kl`, `margin_mse`) or as the weights of hard negatives
(`SoftLabels`).

A teacher scores only each query's own group, its positives and its own hard negatives, and not every query with every
passage of the batch. For distillation, passages without a teacher score are left out on both sides.

Soft labels: each hard negative has the weight that the teacher gives to its being a negative. With p = sigmoid(t /
teacher_temperature), the teacher's probability that a passage of the query's group is relevant,

    sum over N_i of exp(s / tau)   becomes   sum over N_i of (1 - p) exp(s / tau):

the expectation of the sum over the true negatives when the teacher draws the labels. RocketQA's denoising (Qu et al.,
2021, arXiv:2010.08191) removes hard negatives that a cross-encoder scores high; it is the limit of p in {0, 1}. The
debiasing of Chuang et al. (2020, arXiv:2007.00224) also replaces the sum by its expectation, with one probability for
all passages. Passages without a score, and passages outside the query's group, have weight 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn import functional

from raytriever.losses.batch import PAD, Candidates
from raytriever.losses.distributed import WorkerGroup
from raytriever.losses.scores import Panel


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


@dataclass(frozen=True)
class SoftLabels:
    """Log-weights that are added to scores in units of the temperature.

    Args:
        columns: columns of each row's own group, `PAD` in empty slots.
        log_weights: log(1 - p) of each column.
    """

    columns: Int64[Tensor, "rows group"]
    log_weights: Float[Tensor, "rows group"]

    @classmethod
    def of(cls, batch: Candidates, teacher_temperature: float) -> SoftLabels:
        """Return the soft labels of a batch with teacher scores."""
        group = batch.relevance.group
        assert group is not None
        log_weights = functional.logsigmoid(-group.scores.double() / teacher_temperature)
        return cls(group.columns, log_weights.to(batch.queries.dtype))

    def weigh(self, panel: Panel) -> None:
        """Add the log-weights to the scores of a panel. Read the positives' scores before: they change too."""
        columns, log_weights = self.columns[panel.rows], self.log_weights[panel.rows]
        # No column of a row is used twice, and empty slots add 0, so the order of additions does not matter.
        panel.scores.scatter_add_(1, columns.clamp(min=0), log_weights.masked_fill(columns == PAD, 0))


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
