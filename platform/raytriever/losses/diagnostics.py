"""Diagnostics logged with a loss: the AUC of the batch, and the distance between queries and their positives.

The AUC is computed here for losses that do not compute it themselves. It needs no sorting of all scores: each negative
is located among the sorted positives, which are few. Evenly spaced queries of the global batch bound its cost; they are
the same with any number of workers.

The drift of queries is measured as a distance, and as the squared maximum mean discrepancy of a linear kernel
(out-of-distribution paper, section 2 and Eq. 2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from raytriever.losses.engine.batch import Candidates
from raytriever.losses.engine.workers import WorkerGroup

QUERIES = 32


@torch.no_grad()
def batch_auc(candidates: Candidates, workers: WorkerGroup, most: int = QUERIES) -> Float[Tensor, ""]:
    """Compute the AUC over all pairs of the global batch. Equal scores count one half.

    Args:
        candidates: this worker's rows.
        workers: the group.
        most: a larger batch is sampled at about this many evenly spaced queries.

    Returns:
        The share of pairs in the right order, 0 to 1, the same on every worker; NaN if no sampled query has a negative.
    """
    relevance, count = candidates.relevance, len(candidates.queries)
    step = -(-count * workers.size // most)
    first = -workers.rank * count % step
    queries, columns = candidates.queries[first::step], relevance.positives[first::step]
    scores = queries @ candidates.embeddings.T
    own = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, torch.nan)
    # Pairs of rows that are not sampled go to one more row.
    offsets = relevance.excluded_rows - first
    rows = torch.where((offsets >= 0) & (offsets % step == 0), offsets // step, len(queries))
    is_negative = torch.ones(len(queries) + 1, scores.shape[1], dtype=torch.bool, device=scores.device)
    is_negative.index_put_((rows, relevance.excluded_columns), torch.zeros_like(rows[:1], dtype=torch.bool))

    # Workers sample unequal numbers of rows. All send tensors of one length, filled with NaN, which is sorted last.
    sent = own.new_full((-(-count // step) * columns.shape[1],), torch.nan)
    sent[: own.numel()] = own.flatten()
    gathered = workers.gather_values(sent)
    positives = gathered.nan_to_num(nan=torch.inf).sort().values
    # A negative wins against the positives below it, and half against equal ones.
    lost = torch.searchsorted(positives, scores) + torch.searchsorted(positives, scores, right=True)
    is_negative = is_negative[: len(queries)]
    sums = torch.stack([(lost * is_negative).sum(dtype=torch.float64) / 2, is_negative.sum(dtype=torch.float64)])
    wrong, total = workers.sum(sums)
    return (1 - wrong / (total * (~gathered.isnan()).sum())).to(queries.dtype)


@torch.no_grad()
def query_positive_distance(candidates: Candidates, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Compute the mean Euclidean distance between a query and its positives, over all pairs of the global batch."""
    total = sum(
        _used(torch.linalg.vector_norm(candidates.queries - positives, dim=1), is_used).sum(dtype=torch.float64)
        for positives, is_used in _positives(candidates)
    )
    assert isinstance(total, Tensor)
    return (workers.sum(total) / candidates.relevance.positive_pairs).to(candidates.queries.dtype)


@torch.no_grad()
def query_positive_mmd(candidates: Candidates, workers: WorkerGroup) -> Float[Tensor, ""]:
    """Compute ||mean query - mean positive||^2 over the global batch; each positive of a query counts once."""
    relevance = candidates.relevance
    apart = candidates.queries.sum(0, dtype=torch.float64) / relevance.rows
    for positives, is_used in _positives(candidates):
        apart.sub_(_used(positives, is_used).sum(0, dtype=torch.float64), alpha=1 / relevance.positive_pairs)
    apart = workers.sum(apart)
    return (apart @ apart).to(candidates.queries.dtype)


def _positives(candidates: Candidates) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Iterate over the slots: embeddings of the positives of all rows, and whether a row has one if not all have."""
    relevance = candidates.relevance
    masks = [None] * relevance.slots.shape[1] if relevance.is_full else relevance.is_positive.T
    for columns, is_used in zip(relevance.slots.T, masks, strict=True):
        yield candidates.embeddings[columns], is_used


def _used(values: Tensor, is_used: Tensor | None) -> Tensor:
    """Return rows of values, 0 where they are not used."""
    return values if is_used is None else values * is_used.reshape(-1, *[1] * (values.ndim - 1))
