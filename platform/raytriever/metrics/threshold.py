"""One threshold for the scores of all queries, chosen for a wanted precision or recall.

    precision(t) = |{p >= t}| / (|{p >= t}| + |{n >= t}|),   recall(t) = |{p >= t}| / |P|

A document is taken for relevant from the threshold on, the threshold included. So equal scores are taken all or none,
and only scores that occur are thresholds.

- For a precision: the lowest threshold that has it, which is the one of highest recall. Precision may fall below the
  wanted one between such thresholds, and where none has it there is none: `reached` is false, the threshold infinite,
  and the achieved precision the best there is.
- For a recall: the highest threshold that has it, which is the one of highest precision. There always is one.

Precision depends on how many negatives were scored for each positive: a threshold holds for pools made in one way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from raytriever.metrics.auc import sorted_pools
from raytriever.metrics.inputs import MetricInputError

Aim = Literal["precision", "recall"]


@dataclass(frozen=True)
class Threshold:
    """A threshold and what it gives on the pools it was chosen on.

    Args:
        aim, wanted: what was wanted, and how much of it, above 0 to 1.
        score: a document is taken for relevant from here on; infinite where the aim is out of reach.
        reached: whether any threshold has what is wanted.
        precision, recall: at the threshold; out of reach, at that of the best precision.
    """

    aim: Aim
    wanted: float
    score: float
    reached: bool
    precision: float
    recall: float

    @property
    def achieved(self) -> float:
        """The precision or recall, whichever was wanted."""
        return self.precision if self.aim == "precision" else self.recall


def choose_threshold(
    positives: Float[ndarray, " positives"], negatives: Float[ndarray, " negatives"], aim: Aim, wanted: float
) -> Threshold:
    """The threshold for a wanted precision or recall, by the rules above.

    Args:
        positives, negatives: pooled scores of any range and order.
        aim: `precision` or `recall`.
        wanted: above 0, at most 1.

    Raises:
        MetricInputError: a score is NaN, there is no positive, or the wish is out of range.
    """
    if aim not in ("precision", "recall") or not 0 < wanted <= 1:
        raise MetricInputError(f"a {aim} of {wanted}", "threshold", "want a precision or recall above 0, at most 1")
    if not len(positives):
        raise MetricInputError("no positives", "threshold", "choose it on a split that has judged documents")
    above, below = sorted_pools(positives, negatives)
    scores = np.unique(np.concatenate([above, below]))
    true = len(above) - np.searchsorted(above, scores)
    taken = true + len(below) - np.searchsorted(below, scores)
    precisions, recalls = true / taken, true / len(above)
    enough = np.flatnonzero((precisions if aim == "precision" else recalls) >= wanted)
    if not len(enough):
        best = int(precisions.argmax())
        return Threshold(aim, wanted, float("inf"), False, float(precisions[best]), float(recalls[best]))
    place = int(enough[0] if aim == "precision" else enough[-1])
    return Threshold(aim, wanted, float(scores[place]), True, float(precisions[place]), float(recalls[place]))
