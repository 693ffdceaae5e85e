"""SumMargLH: the positives together must be likely (multi-positive paper, Eq. 7; the best one leads, Eq. 11).

value = LSE(P_i u N_i) - LSE(P_i) = softplus(LSE(N_i) - LSE(P_i)),  scores in units of tau
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.engine.rows import RowLoss, softplus


def summarg(
    negatives: Float[Tensor, " rows"],
    positives: Float[Tensor, "rows positives"],
    is_positive: Bool[Tensor, "rows positives"],
) -> Float[Tensor, " rows"]:
    """Return softplus(LSE(N_i) - LSE(P_i)) of each row."""
    return softplus(negatives - positives.masked_fill(~is_positive, -torch.inf).logsumexp(1))


SUMMARG = RowLoss("logsumexp", summarg)
