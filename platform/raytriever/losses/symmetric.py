"""The batch with the roles of queries and passages exchanged, for the symmetric loss.

Rows are the first positives of this worker's queries, candidates are the distinct queries of all workers. A
query whose positive (or known positive) a passage is, is never that passage's negative, wherever in the
batch it stands.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from raytriever.losses.engine.batch import PAD, BatchIds, Candidates, Distinct
from raytriever.losses.engine.rows import first_positive
from raytriever.losses.engine.workers import Workers


def exchanged(candidates: Candidates, ids: BatchIds, workers: Workers) -> Candidates:
    """Passages asking for their queries."""
    queries = Distinct(workers.gather_values(ids.queries))
    asked = first_positive(ids.positives, ids)[:, 0]
    own = queries.columns(ids.queries)
    rows, columns = _answers(asked, ids, queries, workers)
    rows_all = len(asked) * workers.size
    excluded = int(workers.sum(torch.tensor(len(rows), device=rows.device)))
    return Candidates(
        queries=candidates.embeddings.index_select(0, first_positive(candidates.positives, ids)[:, 0]),
        embeddings=queries.keep(workers.gather(candidates.queries)),
        positives=own[:, None],
        excluded_rows=rows,
        excluded_columns=columns,
        rows=rows_all,
        negatives=rows_all * len(queries.places) - excluded,
    )


def _answers(
    asked: Int64[Tensor, " rows"], ids: BatchIds, queries: Distinct, workers: Workers
) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
    """Every (row, query column) in which the row's document is a positive or known of the query."""
    barred = ids.positives if ids.known is None else torch.cat([ids.positives, ids.known], 1)
    width = int(workers.maximum(torch.tensor(barred.shape[1], device=barred.device)))
    documents = workers.gather_values(functional.pad(barred, (0, width - barred.shape[1]), value=PAD))
    owners = queries.columns(workers.gather_values(ids.queries))[:, None].expand_as(documents)
    documents, order = documents.flatten().sort()
    owners = owners.flatten()[order]
    first = torch.searchsorted(documents, asked)
    count = torch.searchsorted(documents, asked, right=True) - first
    rows = torch.repeat_interleave(count)
    within = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[rows]
    pairs = torch.unique(rows * len(queries.places) + owners[first[rows] + within])
    return pairs // len(queries.places), pairs % len(queries.places)
