"""Exchange of the roles of queries and passages in a batch, for the symmetric loss.

Rows are the first positives of this worker's queries. Candidates are the distinct queries of all workers. If a passage
is a positive or known positive of a query, that query is never a negative of the passage, at any position in the batch.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from raytriever.losses.engine.batch import BatchIds, Candidates
from raytriever.losses.engine.rows import first_positive
from raytriever.losses.engine.workers import WorkerGroup


def exchange_roles(
    candidates: Candidates, ids: BatchIds, workers: WorkerGroup, sent: torch.dtype | None = None
) -> Candidates:
    """Return a batch in which passages search for their queries."""
    relevance = candidates.relevance
    assert relevance.exchanged is not None
    first = first_positive(relevance.positives, ids)[:, 0]
    return Candidates(
        # Unlike that of other lookups, this backward pass has a fixed order of additions on every device.
        functional.embedding(first, candidates.embeddings),
        relevance.exchanged.keep(workers.gather(candidates.queries, sent)),
        relevance.exchanged,
    )
