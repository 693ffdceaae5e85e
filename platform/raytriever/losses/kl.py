"""KL over the group: the student's distribution over a query's own group is to be the teacher's.

    value = sum over the group of p_teacher (log p_teacher - log p_student),
    p_student = softmax(s / tau),  p_teacher = softmax(t / teacher_temperature)

As ColBERTv2 (Santhanam et al., 2022, arXiv:2112.01488, section 3.2) learns from a cross-encoder; a list of passages a
query, rather than pairs, is RocketQAv2's (Ren et al., 2021, arXiv:2110.07367), softened distributions are those of
Hinton et al. (2015, arXiv:1503.02531). No other query's passages are looked at. The mean is over the queries of which
the teacher has scored two passages or more: one alone says nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.own_group import OwnGroup
from raytriever.losses.engine.workers import Workers


def kl_share(group: OwnGroup, workers: Workers) -> Float[Tensor, ""]:
    """This worker's share of the mean over all rows that say something, in double precision; 0 where none does."""
    told = group.held.sum(1) > 1
    outside = ~group.held & told[:, None]
    student, teacher = (
        scores.masked_fill(outside, -torch.inf).log_softmax(1).masked_fill(outside, 0)
        for scores in (group.student, group.teacher)
    )
    values = (teacher.exp() * (teacher - student)).masked_fill(outside, 0).sum(1)
    return values.masked_fill(~told, 0).sum() / workers.sum(told.sum()).clamp(min=1)
