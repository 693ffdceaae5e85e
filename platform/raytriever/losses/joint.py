"""JointLH: every positive must be likely (multi-positive paper, Eq. 6; its gradient pulls to 1/|P_i|, Eq. 10).

value = LSE(P_i u N_i) - mean of P_i,  scores in units of tau
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.engine.rows import RowLoss


def joint(
    negatives: Float[Tensor, " rows"],
    positives: Float[Tensor, "rows positives"],
    is_positive: Bool[Tensor, "rows positives"],
) -> Float[Tensor, " rows"]:
    """Return the mean over P_i of LSE(P_i u N_i) - s+, for each row."""
    own = positives.masked_fill(~is_positive, -torch.inf).logsumexp(1)
    mean = positives.masked_fill(~is_positive, 0).sum(1) / is_positive.sum(1)
    return torch.logaddexp(own, negatives) - mean


JOINT = RowLoss("logsumexp", joint)
