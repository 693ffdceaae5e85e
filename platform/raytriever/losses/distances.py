"""How far queries lie from their positives: the drift that the out-of-distribution paper watches (section 2).

One by one, as a distance, and as two clouds, as the squared maximum mean discrepancy of a linear kernel (Eq. 2).
"""

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


@torch.no_grad()
def query_positive_mmd(candidates: Candidates, workers: Workers) -> Float[Tensor, ""]:
    """||mean query - mean positive||^2 over the global batch; a query's positives count one each."""
    queries = candidates.queries.double()
    sums = queries.new_zeros(2, queries.shape[1] + 1)
    sums[0, :-1], sums[0, -1] = queries.sum(0), len(queries)
    held = candidates.positives[candidates.is_positive]
    sums[1, :-1], sums[1, -1] = candidates.embeddings[held].double().sum(0), len(held)
    sums = workers.sum(sums)
    centres = sums[:, :-1] / sums[:, -1:]
    return (centres[0] - centres[1]).square().sum().to(candidates.queries.dtype)
