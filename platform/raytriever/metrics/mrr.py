"""MRR@k: one over the rank of the first relevant document, 0 beyond the cutoff (Voorhees, 1999).

    RR@k = 1 / min{r <= k: the document of rank r is relevant}

trec_eval's `recip_rank` knows no cutoff; MS MARCO's and BEIR's MRR@10 are this one.
"""

from __future__ import annotations

import numpy as np

from raytriever.metrics.relevance import PerQuery, Placed


def mrr(placed: Placed, cutoff: int | None) -> PerQuery:
    """The reciprocal rank of the first relevant document among the `cutoff` best (all for None), 0 to 1."""
    found = placed.relevant & placed.within(cutoff)
    first = np.full(len(placed.lengths), np.inf)
    np.minimum.at(first, placed.queries[found], placed.ranks[found] + 1.0)
    return 1 / first
