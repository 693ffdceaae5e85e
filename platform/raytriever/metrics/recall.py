"""Recall@k: the share of a query's relevant documents among its k best.

    Recall@k = (relevant documents of rank <= k) / (relevant documents)

The denominator is all relevant documents, also where there are more than k: trec_eval's `recall_k`, not BEIR's capped
recall.
"""

from __future__ import annotations

from raytriever.metrics.relevance import PerQuery, Placed, share


def recall(placed: Placed, cutoff: int | None) -> PerQuery:
    """Relevant documents among the `cutoff` best (all for None) over all relevant ones, 0 to 1; 0 without any."""
    return share(placed.totals(placed.relevant & placed.within(cutoff)), placed.relevant_counts)
