"""Judged@k: the share of the k best that was judged at all.

    Judged@k = (judged documents of rank <= k) / (documents of rank <= k)

Unjudged documents count as not relevant in every other metric, so a model that finds what no judge was shown looks
worse than it is; where this differs between two models, their other figures do not compare. As in ir_measures, the
denominator is what was found where that is fewer than k.
"""

from __future__ import annotations

import numpy as np

from raytriever.metrics.relevance import PerQuery, Placed, share


def judged(placed: Placed, cutoff: int) -> PerQuery:
    """Judged documents among the `cutoff` best, 0 to 1; 0 without results."""
    found = np.minimum(placed.lengths, cutoff).astype(np.float64)
    return share(placed.totals(placed.within(cutoff)), found)
