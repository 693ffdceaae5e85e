"""MAP: the mean over a query's relevant documents of the precision at their ranks (Buckley & Voorhees, 2000).

    AP@k = (1 / R) Σ_{relevant documents of rank r <= k} (relevant documents of rank <= r) / r

R counts all relevant documents, also where there are more than k: trec_eval's `map` and `map_cut_k`.
"""

from __future__ import annotations

import numpy as np

from raytriever.metrics.relevance import PerQuery, Placed, share


def average_precision(placed: Placed, cutoff: int | None) -> PerQuery:
    """Average precision among the `cutoff` best (all for None), 0 to 1; 0 without a relevant document."""
    found = placed.relevant & placed.within(cutoff)
    queries, ranks = placed.queries[found], placed.ranks[found]
    order = np.lexsort((ranks, queries))
    first = np.searchsorted(queries, queries)
    precisions = (np.arange(len(order)) - first + 1) / (ranks[order] + 1.0)
    reached = np.bincount(queries, precisions, len(placed.lengths))
    return share(reached, placed.relevant_counts)
