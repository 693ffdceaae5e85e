"""Diagnostics logged with a loss: the AUC of the batch, and how far queries lie from their positives.

The AUC is computed where a loss does not find it on its way. Every score is wanted for it and not its place among all
others: negatives are looked up among the sorted positives, which are few. What that costs is bounded by taking evenly
spaced queries of the global batch, the same ones at any number of workers.

The drift of queries is measured as a distance, and as the squared maximum mean discrepancy of a linear kernel
(out-of-distribution paper, section 2 and Eq. 2)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.batch import Candidates
from raytriever.losses.engine.workers import Workers

QUERIES = 32


@torch.no_grad()
def batch_auc(candidates: Candidates, workers: Workers, most: int = QUERIES) -> Float[Tensor, ""]:
    """The AUC over all pairs of the global batch, equal scores counting a half.

    Args:
        candidates: this worker's rows.
        workers: the group.
        most: queries beyond which only evenly spaced ones are looked at, about as many.

    Returns:
        The share, 0 to 1, the same on every worker; NaN where none of the queries looked at has a negative.
    """
    queries, count = candidates.queries, len(candidates.queries)
    numbers = torch.arange(count, device=queries.device) + workers.rank * count
    looked_at = numbers % -(-count * workers.size // most) == 0
    scores = queries[looked_at] @ candidates.embeddings.T
    places = looked_at.cumsum(0) - 1
    columns = candidates.positives[looked_at]
    own = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, torch.nan)
    barred = looked_at[candidates.excluded_rows]
    scores[places[candidates.excluded_rows[barred]], candidates.excluded_columns[barred]] = torch.nan

    # Workers look at unequally many rows: all send as many, NaN where there are no more.
    sent = own.new_full((count * columns.shape[1],), torch.nan)
    sent[: own.numel()] = own.flatten()
    gathered = workers.gather_values(sent)
    positives = gathered[~gathered.isnan()].sort().values
    negatives = scores[~scores.isnan()]
    # A negative wins against the positives below it, and half against its equals.
    lost = torch.searchsorted(positives, negatives) + torch.searchsorted(positives, negatives, right=True)
    sums = torch.stack([lost.sum(dtype=torch.float64) / 2, lost.new_tensor(len(negatives), dtype=torch.float64)])
    wrong, total = workers.sum(sums)
    return (1 - wrong / (total * len(positives))).to(queries.dtype)


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
