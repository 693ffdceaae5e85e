"""Soft labels: a hard negative counts as far as the teacher thinks that it is one.

With p = sigmoid(t / teacher_temperature), the teacher's probability that a passage of the query's group is relevant,

    sum over N_i of exp(s / tau)   becomes   sum over N_i of (1 - p) exp(s / tau):

what is expected of the sum over the true negatives when the labels are drawn from the teacher. RocketQA's denoising
(Qu et al., 2021, arXiv:2010.08191), which removes hard negatives that a cross-encoder scores high, is its limit of p
in {0, 1}; an expected sum in place of the sum is Chuang et al.'s debiasing (2020, arXiv:2007.00224), which knows one
probability for all passages. Those without a score, and those that are not of the query's group, count whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from raytriever.losses.engine.batch import PAD, Candidates
from raytriever.losses.engine.sweep import Panel


@dataclass(frozen=True)
class SoftLabels:
    """What is added to scores in units of the temperature.

    Args:
        columns: of each row's own group, `PAD` where nothing is added.
        log_weights: log(1 - p) of each.
    """

    columns: Int64[Tensor, "rows group"]
    log_weights: Float[Tensor, "rows group"]

    @classmethod
    def of(cls, batch: Candidates, teacher_temperature: float) -> SoftLabels:
        """Of a batch that a teacher was asked about."""
        assert batch.group is not None
        assert batch.teacher is not None
        log_weights = functional.logsigmoid(-batch.teacher.double() / teacher_temperature)
        return cls(batch.group, log_weights.to(batch.queries.dtype))

    def weigh(self, panel: Panel) -> None:
        """Add to the scores of a panel; positives, which get it too, are to be read before."""
        columns, log_weights = self.columns[panel.rows], self.log_weights[panel.rows]
        there = columns != PAD
        rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)[there]
        panel.scores[rows, columns[there]] += log_weights[there]
