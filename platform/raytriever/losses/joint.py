"""JointLH: every positive must be likely (multi-positive paper, Eq. 6; its gradient pulls to 1/|P_i|, Eq. 10).

value = LSE(P_i u N_i) - mean of P_i = a + softplus(LSE(N_i) - mean of P_i - a),  a = LSE(P_i) - mean of P_i,
scores in units of tau
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.engine.rows import RowLoss, softplus


def joint(
    negatives: Float[Tensor, " rows"],
    positives: Float[Tensor, "rows positives"],
    is_positive: Bool[Tensor, "rows positives"],
) -> Float[Tensor, " rows"]:
    """Return the mean over P_i of LSE(P_i u N_i) - s+, for each row."""
    mean = positives.masked_fill(~is_positive, 0).sum(1) / is_positive.sum(1)
    own = (positives - mean[:, None]).masked_fill(~is_positive, -torch.inf).logsumexp(1)
    # As the difference of two large numbers, a small loss would lose its digits.
    return own + softplus(negatives - mean - own)


JOINT = RowLoss("logsumexp", joint)
