"""LSEPair: every positive above every negative (multi-positive paper, Eq. 9; low positives weigh most, Eq. 12).

    value = log(1 + sum_{p in P_i} sum_{n in N_i} exp(n - p)) = softplus(LSE(N_i) + LSE(-P_i))

The double sum factors, so no P x N table is built. The variants of section 6.2 replace one or both log-sum-exps by a
maximum or minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.engine.rows import RowLoss, RowValue, softplus

PositiveReduction = Callable[[Float[Tensor, "rows positives"], Bool[Tensor, "rows positives"]], Float[Tensor, " rows"]]


def negative_logsumexp(positives: Tensor, is_positive: Tensor) -> Tensor:
    """Return LSE(-P_i) of each row."""
    return (-positives).masked_fill(~is_positive, -torch.inf).logsumexp(1)


def negative_maximum(positives: Tensor, is_positive: Tensor) -> Tensor:
    """Return -max(P_i) of each row."""
    return -positives.masked_fill(~is_positive, -torch.inf).max(1).values


def negative_minimum(positives: Tensor, is_positive: Tensor) -> Tensor:
    """Return -min(P_i) of each row."""
    return -positives.masked_fill(~is_positive, torch.inf).min(1).values


def pairwise(reduce: PositiveReduction) -> RowValue:
    """Return the function that computes softplus(negatives + reduced positives)."""

    def value(negatives: Tensor, positives: Tensor, is_positive: Tensor) -> Tensor:
        return softplus(negatives + reduce(positives, is_positive))

    return value


LSEPAIR = RowLoss("logsumexp", pairwise(negative_logsumexp))
LSEPAIR_MAXP = RowLoss("logsumexp", pairwise(negative_maximum))
LSEPAIR_MINP = RowLoss("logsumexp", pairwise(negative_minimum))
LSEPAIR_MAXN = RowLoss("maximum", pairwise(negative_logsumexp))
LSEPAIR_MINP_MAXN = RowLoss("maximum", pairwise(negative_minimum))
