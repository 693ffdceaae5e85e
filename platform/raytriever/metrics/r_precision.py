"""R-precision: precision at the number of a query's relevant documents.

R-Prec = (relevant documents of rank <= R) / R,    R = (relevant documents)
"""

from __future__ import annotations

from raytriever.metrics.relevance import PerQuery, Placed, share


def r_precision(placed: Placed, cutoff: int | None = None) -> PerQuery:
    """The share of the R best that is relevant, 0 to 1; 0 without a relevant document. There is no cutoff to give."""
    early = placed.ranks < placed.relevant_counts[placed.queries]
    return share(placed.totals(placed.relevant & early), placed.relevant_counts)
