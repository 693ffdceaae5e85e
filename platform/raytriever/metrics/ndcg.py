"""nDCG@k with linear gains, as trec_eval and BEIR compute it (Järvelin & Kekäläinen, 2002).

    DCG@k = Σ_{r = 1..k} gain_r / log2(r + 1),    nDCG@k = DCG@k / DCG@k of the best order of all judged documents

The gain of a document is its grade, whatever the level of relevance; 0 if that is negative or it is unjudged.
"""

from __future__ import annotations

import numpy as np

from raytriever.metrics.relevance import PerQuery, Placed, share


def ndcg(placed: Placed, cutoff: int | None) -> PerQuery:
    """nDCG among the `cutoff` best (all for None), 0 to 1; 0 without a document of grade 1 or more."""
    gained = placed.grades > 0
    order = np.lexsort((-placed.grades, placed.queries))
    starts = np.searchsorted(placed.queries, np.arange(len(placed.lengths)))
    ideal = np.empty_like(placed.ranks)
    ideal[order] = np.arange(len(order)) - starts[placed.queries]
    best = gained if cutoff is None else gained & (ideal < cutoff)
    return share(_dcg(placed, placed.ranks, gained & placed.within(cutoff)), _dcg(placed, ideal, best))


def _dcg(placed: Placed, ranks: np.ndarray, counted: np.ndarray) -> PerQuery:
    return placed.totals(counted, placed.grades / np.log2(ranks + 2.0))
