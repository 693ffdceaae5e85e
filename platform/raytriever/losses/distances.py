"""How far queries lie from their positives: the drift that the out-of-distribution paper watches (section 2)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.candidates import Candidates
from raytriever.losses.workers import Workers


@torch.no_grad()
def query_positive_distance(candidates: Candidates, workers: Workers) -> Float[Tensor, ""]:
    """The mean Euclidean distance between a query and its positives, over all pairs of the global batch."""
    total = candidates.queries.new_zeros(2, dtype=torch.float64)
    for columns, held in zip(candidates.positives.T, candidates.is_positive.T, strict=True):
        apart = candidates.queries - candidates.embeddings[columns.clamp(min=0)]
        total[0] += torch.linalg.vector_norm(apart, dim=1)[held].sum()
        total[1] += held.sum()
    distance, pairs = workers.sum(total)
    return (distance / pairs).to(candidates.queries.dtype)
