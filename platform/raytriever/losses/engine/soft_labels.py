"""Soft labels: each hard negative has the weight that the teacher gives to its being a negative.

With p = sigmoid(t / teacher_temperature), the teacher's probability that a passage of the query's group is relevant,

    sum over N_i of exp(s / tau)   becomes   sum over N_i of (1 - p) exp(s / tau):

the expectation of the sum over the true negatives when the teacher draws the labels. RocketQA's denoising (Qu et al.,
2021, arXiv:2010.08191) removes hard negatives that a cross-encoder scores high; it is the limit of p in {0, 1}. The
debiasing of Chuang et al. (2020, arXiv:2007.00224) also replaces the sum by its expectation, with one probability for
all passages. Passages without a score, and passages outside the query's group, have weight 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from raytriever.losses.engine.batch import Candidates
from raytriever.losses.engine.relevance import PAD
from raytriever.losses.engine.sweep import Panel


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
