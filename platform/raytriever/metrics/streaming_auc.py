"""The AUC of pools beyond memory, with a bound on its error.

Scores are counted in bins of bounded memory (`score_counts.py`). A pair whose scores lie in different bins is known; of
pairs that share a bin half are taken as in order. In a bin that has seen one score they are ties, and where all bins
are such the value is exact; in the others at most all of them are wrong by a half:

    |AUC - value| <= Σ_{bins of different scores} P_b N_b / (2 |P||N|)

The error itself is far below the bound where both pools are smooth, as within a bin either order is about as frequent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raytriever.metrics.score_bits import count_pairs
from raytriever.metrics.score_counts import ScoreCounts


@dataclass(frozen=True)
class BoundedAuc:
    """An AUC, 0 to 1, how far at most it is from that of the scores as given, and the sizes of the pools."""

    value: float
    error_bound: float
    positives: int
    negatives: int


def streaming_auc(counts: ScoreCounts) -> BoundedAuc:
    """The AUC of all scores counted so far; NaN, with a bound of NaN, while a pool is empty."""
    positives, negatives = counts.sizes
    if not positives or not negatives:
        return BoundedAuc(float("nan"), float("nan"), positives, negatives)
    cells = np.flatnonzero(counts.bins)
    doubled, unknown = count_pairs(counts.counts, counts.seen, counts.bases[cells], counts.bins[cells], counts.rounded)
    pairs = 2 * positives * negatives
    return BoundedAuc(int(doubled) / pairs, int(unknown) / pairs, positives, negatives)
