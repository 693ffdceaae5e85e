"""The batch's AUC from sums over subcells (AUC paper, section 3.1): the share of pairs in the right order.

Pairs in different subcells (a sixteenth of tau wide) are counted exactly. Within one, a pair counts as a
half plus the difference of the means, which is exact for equal scores and for densities that are linear
there.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def auc(
    positive_count: Float[Tensor, " subcells"],
    positive_sum: Float[Tensor, " subcells"],
    negative_count: Float[Tensor, " subcells"],
    negative_sum: Float[Tensor, " subcells"],
) -> Float[Tensor, ""]:
    """The AUC of scores given by their number and the sum of their places (0 to 1) in each subcell."""
    below = negative_count.cumsum(0) - negative_count
    pairs = positive_count * negative_count
    lead = negative_count * positive_sum - positive_count * negative_sum
    won = torch.minimum((pairs / 2 + lead).clamp(min=0), pairs)
    return ((positive_count * below).sum() + won.sum()) / (positive_count.sum() * negative_count.sum())
