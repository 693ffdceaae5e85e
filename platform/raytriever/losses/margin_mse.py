"""MarginMSE: the student learns the teacher's margins between positives and hard negatives (Hofstätter et al., 2020,
arXiv:2010.02666).

    value = mean over pairs (p, n) of a query's own group of ((s_p - s_n) / tau - (t_p - t_n) / teacher_temperature)^2

With dot products and both temperatures 1 it is the loss of the paper. Margins of cosines are at most 2 and those of a
teacher about 10: tau scales the first to the second.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.teacher import OwnGroup
from raytriever.losses.engine.workers import WorkerGroup


def margin_mse_share(group: OwnGroup, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Return this worker's share of the mean over all pairs, in double precision; 0 if there is no pair."""
    difference = group.student - group.teacher
    pairs = group.is_positive[:, :, None] & group.is_negative[:, None, :]
    errors = torch.where(pairs, difference[:, :, None] - difference[:, None, :], 0).square()
    return errors.sum() / workers.sum(pairs.sum()).clamp(min=1)
