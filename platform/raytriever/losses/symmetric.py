"""Exchange of the roles of queries and passages in a batch, for the symmetric loss.

Rows are the first positives of this worker's queries. Candidates are the distinct queries of all workers. If a passage
is a positive or known positive of a query, that query is never a negative of the passage, at any position in the batch.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from raytriever.losses.engine.batch import PAD, BatchIds, Candidates, Distinct
from raytriever.losses.engine.rows import first_positive
from raytriever.losses.engine.workers import Workers


def exchange_roles(candidates: Candidates, ids: BatchIds, workers: Workers) -> Candidates:
    """Return a batch in which passages search for their queries."""
    queries = Distinct(workers.gather_values(ids.queries))
    passages = first_positive(ids.positives, ids)[:, 0]
    own = queries.columns(ids.queries)
    rows, columns = _excluded_pairs(passages, ids, queries, workers)
    rows_all = len(passages) * workers.size
    excluded = int(workers.sum(torch.tensor(len(rows), device=rows.device)))
    return Candidates(
        # Unlike that of other lookups, this backward pass has a fixed order of additions on every device.
        queries=functional.embedding(first_positive(candidates.positives, ids)[:, 0], candidates.embeddings),
        embeddings=queries.keep(workers.gather(candidates.queries)),
        positives=own[:, None],
        excluded_rows=rows,
        excluded_columns=columns,
        rows=rows_all,
        negatives=rows_all * len(queries.positions) - excluded,
    )


def _excluded_pairs(
    passages: Int64[Tensor, " rows"], ids: BatchIds, queries: Distinct, workers: Workers
) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
    """Return every (row, query column) in which the row's passage is a positive or known positive of the query."""
    relevant = ids.positives if ids.known is None else torch.cat([ids.positives, ids.known], 1)
    width = int(workers.maximum(torch.tensor(relevant.shape[1], device=relevant.device)))
    documents = workers.gather_values(functional.pad(relevant, (0, width - relevant.shape[1]), value=PAD))
    owners = queries.columns(workers.gather_values(ids.queries))[:, None].expand_as(documents)
    documents, order = documents.flatten().sort()
    owners = owners.flatten()[order]
    first = torch.searchsorted(documents, passages)
    count = torch.searchsorted(documents, passages, right=True) - first
    rows = torch.repeat_interleave(count)
    within = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[rows]
    pairs = torch.unique(rows * len(queries.positions) + owners[first[rows] + within])
    return pairs // len(queries.positions), pairs % len(queries.positions)
