"""LSEPair: every positive above every negative (multi-positive paper, Eq. 9; low positives weigh most, Eq. 12).

    value = log(1 + sum_{p in P_i} sum_{n in N_i} exp(n - p)) = softplus(LSE(N_i) + LSE(-P_i))

The double sum factors, so no P x N table is built. The variants of its section 6.2 put a maximum or minimum
in place of one or both log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.engine.rows import RowLoss, RowValue, softplus

Reduced = Callable[[Float[Tensor, "rows positives"], Bool[Tensor, "rows positives"]], Float[Tensor, " rows"]]


def all_negated(positives: Tensor, held: Tensor) -> Tensor:
    """LSE(-P_i)."""
    return (-positives).masked_fill(~held, -torch.inf).logsumexp(1)


def highest_negated(positives: Tensor, held: Tensor) -> Tensor:
    """-max(P_i)."""
    return -positives.masked_fill(~held, -torch.inf).max(1).values


def lowest_negated(positives: Tensor, held: Tensor) -> Tensor:
    """-min(P_i)."""
    return -positives.masked_fill(~held, torch.inf).min(1).values


def pairwise(reduced: Reduced) -> RowValue:
    """softplus(negatives + reduced positives)."""

    def value(negatives: Tensor, positives: Tensor, held: Tensor) -> Tensor:
        return softplus(negatives + reduced(positives, held))

    return value


LSEPAIR = RowLoss("logsumexp", pairwise(all_negated))
LSEPAIR_MAXP = RowLoss("logsumexp", pairwise(highest_negated))
LSEPAIR_MINP = RowLoss("logsumexp", pairwise(lowest_negated))
LSEPAIR_MAXN = RowLoss("maximum", pairwise(all_negated))
LSEPAIR_MINP_MAXN = RowLoss("maximum", pairwise(lowest_negated))
