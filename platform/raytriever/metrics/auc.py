"""Area under the ROC curve of pooled scores: the Mann-Whitney U statistic, exact, ties by mid-rank.

The chance that a positive drawn from the whole pool outscores a negative drawn from it, whatever their queries
(Optimizing What Matters, section 5.1 and Lemma 1: AUC = 1 - AoC). Scores need no scale: only their order counts.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray


def auc(positives: ndarray, negatives: ndarray) -> float:
    """The AUC of two pools of scores; a tie counts half; NaN when either pool is empty."""
    if not len(positives) or not len(negatives):
        return float("nan")
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, side="left").astype(np.float64)
    not_above = np.searchsorted(ordered, positives, side="right").astype(np.float64)
    return float((below + not_above).sum() / (2.0 * len(positives) * len(negatives)))
