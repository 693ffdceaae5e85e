"""Success@k: whether a relevant document is among the k best.

    Success@k = [a document of rank <= k is relevant]

Its mean is the share of queries that have an answer in the top k: trec_eval's `success_k`. It differs from Acc@k
(`accuracy`), which reads the passages for an answer string and needs no judgements.
"""

from __future__ import annotations

from raytriever.metrics.relevance import PerQuery, Placed


def success(placed: Placed, cutoff: int) -> PerQuery:
    """Return 1 for a query with a relevant document among its `cutoff` best, else 0."""
    return (placed.totals(placed.relevant & placed.within(cutoff)) > 0).astype(float)
