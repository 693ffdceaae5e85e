"""A worker's share of a global mean: reported whole, differentiated so that averaging makes it right."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from raytriever.losses.workers import Workers


def of_global_mean(share: Float[Tensor, ""], workers: Workers) -> Float[Tensor, ""]:
    """The sum of all workers' shares, whose gradient is `workers.size` times this worker's own share.

    Averaging gradients over the workers divides by their number again, so parameters receive the gradient
    of the sum.
    """
    scaled = share * workers.size
    return workers.sum(share) + (scaled - scaled.detach())
