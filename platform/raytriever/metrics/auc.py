"""Area under the ROC curve of pooled scores: the Mann-Whitney U statistic, exact, ties by mid-rank.

    AUC = (1 / |P||N|) Σ_{p in P} Σ_{n in N} ([p > n] + [p = n] / 2)

The chance that a positive drawn from the whole pool outscores a negative drawn from it, whatever their queries
(Optimizing What Matters, section 5.1 and Lemma 1: AUC = 1 - AoC). Scores need no scale: only their order counts.
Both pools are sorted and merged, and pairs are counted in integers. Pools beyond memory: `streaming_auc.py`.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, scores_of

# Twice the number of pairs is counted in 64 bits.
MOST_PAIRS = 2**63


def auc(positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"]) -> float:
    """The AUC of two pools of scores, 0 to 1; a tie counts half; NaN when either pool is empty.

    Args:
        positives, negatives: of any range and order, infinities allowed. Where one pool is float64, float32 scores of
            the other are compared with it as they are.

    Raises:
        MetricInputError: a score is NaN, or there are 2^63 pairs or more.
    """
    if not len(positives) or not len(negatives):
        return float("nan")
    return int(merged_pairs(*sorted_pools(positives, negatives))) / (2 * len(positives) * len(negatives))


def sorted_pools(positives: ndarray, negatives: ndarray) -> tuple[ndarray, ndarray]:
    """Both pools checked, ascending, and of one type."""
    above, below = scores_of(positives, "scores of positives"), scores_of(negatives, "scores of negatives")
    check_pairs(len(above), len(below))
    shared = np.promote_types(above.dtype, below.dtype)
    return np.sort(above.astype(shared, copy=False)), np.sort(below.astype(shared, copy=False))


def check_pairs(positives: int, negatives: int) -> None:
    """Raise `MetricInputError` where pairs cannot be counted."""
    if positives * negatives >= MOST_PAIRS:
        raise MetricInputError(
            f"{positives} x {negatives} scores", "AUC", "pools of fewer than 2^63 pairs can be counted"
        )


@numba.njit(cache=True)
def merged_pairs(positives, negatives):  # type: ignore[no-untyped-def]
    """Twice the number of pairs in order plus the number of ties, from ascending pools."""
    total = np.uint64(0)
    below = not_above = 0
    for score in positives:
        while below < len(negatives) and negatives[below] < score:
            below += 1
        not_above = max(below, not_above)
        while not_above < len(negatives) and negatives[not_above] <= score:
            not_above += 1
        total += np.uint64(below + not_above)
    return total
