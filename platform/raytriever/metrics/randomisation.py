"""The paired randomisation test on per-query values (Fisher, 1935; for retrieval: Smucker, Allan & Carterette, 2007).

If two systems were the same, either of the two values of a query might as well be the other's: each sign of the
differences d_q is a toss. The p-value is how often the mean of so signed differences is at least as far from 0 as the
one that was seen. Nothing is assumed of how the differences are distributed.

    p = #{s in {-1, 1}^n : |Σ s_q d_q| >= |Σ d_q|} / 2^n                      up to 20 queries that differ: exact
    p = (1 + #{drawn s : |Σ s_q d_q| >= |Σ d_q|}) / (1 + draws)                else (Phipson & Smyth, 2010)

The added one is the assignment that was seen; without it a p-value of 0 could come out, which no test has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, paired_values

EXACT_QUERIES = 20
# Signs drawn at once.
BLOCK = 1 << 22


@dataclass(frozen=True)
class Randomisation:
    """The two-sided p-value, whether all assignments were counted, and how many were."""

    p_value: float
    exact: bool
    assignments: int


def randomisation_test(
    system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"], draws: int = 10_000, seed: int = 0
) -> Randomisation:
    """Whether the mean of `system - baseline` differs from 0.

    Queries that do not differ change nothing, whatever their sign, and are not tossed.

    Args:
        system, baseline: one value a query, in the same order.
        draws: random assignments where there are too many to count; a p-value is known to within about
            2 sqrt(p (1 - p) / draws).
        seed: of the draws; the same seed gives the same p-value.

    Raises:
        MetricInputError: the values are not paired, not finite, or of fewer than two queries; there are no draws.
    """
    differences = paired_values(system, baseline)
    if draws < 1:
        raise MetricInputError(f"{draws} draws", "randomisation test", "give at least 1")
    differences = differences[differences != 0]
    # Sums that are equal but for the order of addition count as equal.
    seen = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if len(differences) <= EXACT_QUERIES:
        sums = np.zeros(1)
        for difference in differences:
            sums = np.concatenate([sums + difference, sums - difference])
        return Randomisation(float((np.abs(sums) >= seen).mean()), True, len(sums))
    rng = np.random.default_rng(seed)
    beyond, length = 0, -(-len(differences) // 8)
    step = max(1, BLOCK // len(differences))
    for start in range(0, draws, step):
        count = min(step, draws - start)
        tosses = np.frombuffer(rng.bytes(count * length), np.uint8).reshape(count, length)
        heads = np.unpackbits(tosses, axis=1, count=len(differences)).astype(np.float64)
        beyond += int((np.abs(2 * (heads @ differences) - differences.sum()) >= seen).sum())
    return Randomisation((beyond + 1) / (draws + 1), False, draws)
