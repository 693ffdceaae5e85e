"""MW: every positive of the batch against every negative of the batch, across queries (AUC paper, Eq. 2).

L = mean over positives p and negatives n of softplus((n - p) / tau)
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from raytriever.losses.candidates import Candidates
from raytriever.losses.workers import Workers


def mw(
    candidates: Candidates, log_temperature: Float[Tensor, ""], workers: Workers
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """This worker's share of the mean over pairs, and the batch's AUC."""
    scores = candidates.queries @ candidates.embeddings.T
    held = candidates.is_positive
    own = scores.gather(1, candidates.positives.clamp(min=0))[held]
    gathered = workers.gather(
        functional.pad(own[:, None], (0, 0, 0, held.numel() - len(own)), value=float("nan"))
    )
    positives = gathered[~gathered.isnan()]
    negatives = scores.clone()
    negatives[candidates.excluded_rows, candidates.excluded_columns] = float("-inf")
    flat = negatives[negatives != float("-inf")]
    pairs = len(positives) * candidates.negatives
    total = scores.new_zeros(())
    won = scores.new_zeros(())
    for positive in positives:
        difference = (flat - positive) * (-log_temperature).exp()
        total = total + functional.softplus(difference).sum()
        won += (difference < 0).sum() + (difference == 0).sum() / 2
    return total / pairs, {"batch_auc": workers.sum(won) / pairs}
