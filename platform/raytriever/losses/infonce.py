"""InfoNCE, or SingleLH: the first positive against its negatives (multi-positive paper, Eq. 3-4 and 8).

value = LSE({s+} u N_i) - s+ = log(1 + sum_{n in N_i} exp(n - s+)),  scores in units of tau
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.engine.rows import RowLoss, first_positive, softplus


def infonce(
    negatives: Float[Tensor, " rows"],
    positives: Float[Tensor, "rows one"],
    is_positive: Bool[Tensor, "rows one"],
) -> Float[Tensor, " rows"]:
    """Return softplus(LSE(N_i) - s+) of each row."""
    return softplus(negatives - positives[:, 0])


INFONCE = RowLoss("logsumexp", infonce, first_positive)
