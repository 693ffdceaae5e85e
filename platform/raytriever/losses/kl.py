"""KL over the group: the student learns the teacher's distribution over each query's own group.

    value = sum over the group of p_teacher (log p_teacher - log p_student),
    p_student = softmax(s / tau),  p_teacher = softmax(t / teacher_temperature)

ColBERTv2 (Santhanam et al., 2022, arXiv:2112.01488, section 3.2) learns from a cross-encoder in this way. A list of
passages for each query, instead of pairs, comes from RocketQAv2 (Ren et al., 2021, arXiv:2110.07367). Softened
distributions come from Hinton et al. (2015, arXiv:1503.02531). Passages of other queries are not used. The mean is over
the queries with two or more passages that the teacher has scored: the distribution of a single passage is constant.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.teacher import OwnGroup
from raytriever.losses.engine.workers import WorkerGroup


def kl_share(group: OwnGroup, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return this worker's share of the mean, in double precision; 0 if no query has two scored passages."""
    has_distribution = group.is_scored.sum(1) > 1
    outside = ~group.is_scored & has_distribution[:, None]
    student, teacher = (
        scores.masked_fill(outside, -torch.inf).log_softmax(1).masked_fill(outside, 0)
        for scores in (group.student, group.teacher)
    )
    values = (teacher.exp() * (teacher - student)).masked_fill(outside, 0).sum(1)
    return values.masked_fill(~has_distribution, 0).sum() / workers.sum(has_distribution.sum()).clamp(min=1)
