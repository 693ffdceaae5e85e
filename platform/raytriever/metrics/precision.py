"""Precision@k: the share of the k best that is relevant.

    P@k = (relevant documents of rank <= k) / k

The denominator is k, also where fewer documents were found: trec_eval's `P_k`.
"""

from __future__ import annotations

from raytriever.metrics.relevance import PerQuery, Placed


def precision(placed: Placed, cutoff: int) -> PerQuery:
    """Relevant documents among the `cutoff` best over `cutoff`, 0 to 1."""
    return placed.totals(placed.relevant & placed.within(cutoff)) / cutoff
