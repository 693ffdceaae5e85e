"""Diagnostics logged with a loss: the AUC of the batch, and the distance between queries and their positives.

The AUC is computed here for losses that do not compute it themselves. It needs no sorting of all scores: each negative
is located among the sorted positives, which are few. Evenly spaced queries of the global batch bound its cost; they are
the same with any number of workers.

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
    """Compute the AUC over all pairs of the global batch. Equal scores count one half.

    Args:
        candidates: this worker's rows.
        workers: the group.
        most: a larger batch is sampled at about this many evenly spaced queries.

    Returns:
        The share of pairs in the right order, 0 to 1, the same on every worker; NaN if no sampled query has a negative.
    """
    queries, count = candidates.queries, len(candidates.queries)
    numbers = torch.arange(count, device=queries.device) + workers.rank * count
    is_sampled = numbers % -(-count * workers.size // most) == 0
    scores = queries[is_sampled] @ candidates.embeddings.T
    sampled_rows = is_sampled.cumsum(0) - 1
    columns = candidates.positives[is_sampled]
    own = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, torch.nan)
    excluded = is_sampled[candidates.excluded_rows]
    scores[sampled_rows[candidates.excluded_rows[excluded]], candidates.excluded_columns[excluded]] = torch.nan

    # Workers sample unequal numbers of rows. All send tensors of one length, filled with NaN.
    sent = own.new_full((count * columns.shape[1],), torch.nan)
    sent[: own.numel()] = own.flatten()
    gathered = workers.gather_values(sent)
    positives = gathered[~gathered.isnan()].sort().values
    negatives = scores[~scores.isnan()]
    # A negative wins against the positives below it, and half against equal ones.
    lost = torch.searchsorted(positives, negatives) + torch.searchsorted(positives, negatives, right=True)
    sums = torch.stack([lost.sum(dtype=torch.float64) / 2, lost.new_tensor(len(negatives), dtype=torch.float64)])
    wrong, total = workers.sum(sums)
    return (1 - wrong / (total * len(positives))).to(queries.dtype)


@torch.no_grad()
def query_positive_distance(candidates: Candidates, workers: Workers) -> Float[Tensor, ""]:
    """Compute the mean Euclidean distance between a query and its positives, over all pairs of the global batch."""
    total = candidates.queries.new_zeros(2, dtype=torch.float64)
    for columns, is_positive in zip(candidates.positives.T, candidates.is_positive.T, strict=True):
        difference = candidates.queries - candidates.embeddings[columns.clamp(min=0)]
        total[0] += torch.linalg.vector_norm(difference, dim=1)[is_positive].sum()
        total[1] += is_positive.sum()
    distance, pairs = workers.sum(total)
    return (distance / pairs).to(candidates.queries.dtype)


@torch.no_grad()
def query_positive_mmd(candidates: Candidates, workers: Workers) -> Float[Tensor, ""]:
    """Compute ||mean query - mean positive||^2 over the global batch; each positive of a query counts once."""
    queries = candidates.queries.double()
    sums = queries.new_zeros(2, queries.shape[1] + 1)
    sums[0, :-1], sums[0, -1] = queries.sum(0), len(queries)
    columns = candidates.positives[candidates.is_positive]
    sums[1, :-1], sums[1, -1] = candidates.embeddings[columns].double().sum(0), len(columns)
    sums = workers.sum(sums)
    centres = sums[:, :-1] / sums[:, -1:]
    return (centres[0] - centres[1]).square().sum().to(candidates.queries.dtype)
