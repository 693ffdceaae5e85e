"""MarginMSE: the student's margins between positives and hard negatives are to be the teacher's (Hofstätter et al.,
2020, arXiv:2010.02666).

    value = mean over pairs (p, n) of a query's own group of ((s_p - s_n) / tau - (t_p - t_n) / teacher_temperature)^2

With dot products and both temperatures 1 it is the paper's; cosines, whose margins are at most 2, need tau to reach the
teacher's, which are of the order of 10.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.own_group import OwnGroup
from raytriever.losses.engine.workers import Workers


def margin_mse_share(group: OwnGroup, workers: Workers) -> Float[Tensor, ""]:
    """This worker's share of the mean over all pairs, in double precision; 0 where there is no pair."""
    apart = group.student - group.teacher
    pairs = group.positive[:, :, None] & group.negative[:, None, :]
    errors = torch.where(pairs, apart[:, :, None] - apart[:, None, :], 0).square()
    return errors.sum() / workers.sum(pairs.sum()).clamp(min=1)
