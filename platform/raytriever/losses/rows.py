"""A row loss: a small function of one query's negatives, reduced to one number, and of its positives' scores.

The engine streams the scores; a file that defines a row loss sees only tiny tensors, in units of the
temperature, and autograd differentiates them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from raytriever.losses.batch import BatchIds
from raytriever.losses.candidates import Candidates

RowValue = Callable[
    [Float[Tensor, " rows"], Float[Tensor, "rows positives"], Bool[Tensor, "rows positives"]],
    Float[Tensor, " rows"],
]


def all_positives(candidates: Candidates, ids: BatchIds) -> Tensor:
    """Every positive of a query."""
    return candidates.positives


def first_positive(candidates: Candidates, ids: BatchIds) -> Tensor:
    """The positive that stands first in the query's group."""
    return candidates.positives[:, :1]


@dataclass(frozen=True)
class RowLoss:
    """What the engine needs to know of a loss that is a mean over queries.

    Args:
        negatives: how a query's negatives are reduced, to -inf when it has none.
        value: (that number, the positives' scores, where they hold) -> the query's loss.
        positives: which of a query's positives the loss compares; the others still are no negatives.
    """

    negatives: Literal["logsumexp", "maximum"]
    value: RowValue
    positives: Callable[[Candidates, BatchIds], Tensor] = all_positives


def softplus(difference: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """log(1 + exp(difference)), exact at both ends (PyTorch's own turns linear at 20)."""
    return torch.logaddexp(difference, torch.zeros_like(difference))
