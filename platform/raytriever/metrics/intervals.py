"""Proportions and their confidence intervals, for independent cases or for cases that are grouped by query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from scipy.special import ndtri, stdtrit

# Probability that a value is below the upper bound of a 95 % interval.
_UPPER = 0.975


@dataclass(frozen=True)
class Proportion:
    """Proportion `count / total` with its confidence interval. If `total` is 0: NaN, with the interval [0, 1]."""

    count: int
    total: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The proportion, count / total."""
        return self.count / self.total if self.total else float("nan")

    @property
    def rest(self) -> Proportion:
        """Proportion of the other cases: 1 - count / total."""
        return Proportion(self.total - self.count, self.total, 1 - self.high, 1 - self.low)


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """Compute Wilson's (1927) 95 % interval of a proportion of independent cases. It is 0 to 1 without trials.

        (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)

    Unlike p ± z sqrt(p (1 - p) / n), the bounds stay within 0 and 1, and are correct near both."""
    return _wilson_bounds(successes / trials, trials, float(ndtri(_UPPER))) if trials else (0.0, 1.0)


def wilson_by_query(
    counts: Int64[ndarray, " queries"] | Float64[ndarray, " queries"],
    totals: Int64[ndarray, " queries"] | Float64[ndarray, " queries"],
    worth: float = 1.0,
) -> tuple[float, float]:
    """Compute a 95 % interval of `sum(counts) / sum(totals)` for cases that are correlated within a query.

    It is Wilson's interval for an effective number of independent cases n, with Student's quantile t instead of z:

        n = p (1 - p) / V,   V = Q / (Q - 1) Σ_q (count_q - p total_q)² / (Σ_q total_q)²

    V is the variance of the ratio over the Q queries with a case, by the linearization of survey sampling (Korn &
    Graubard, 1998), and t has Q - 1 degrees of freedom. n is at most the number of cases. If p is 0 or 1, the variance
    within queries is unknown, and each query is treated as one case: n = Q. At the end, n is multiplied by `worth`.
    Without a case, the interval is 0 to 1."""
    counts, totals = counts[totals > 0].astype(np.float64), totals[totals > 0].astype(np.float64)
    queries, cases = len(totals), float(totals.sum())
    if not queries:
        return 0.0, 1.0
    fraction = float(counts.sum()) / cases
    if queries == 1:
        return _wilson_bounds(fraction, worth, float(ndtri(_UPPER)))
    residuals = counts - fraction * totals
    variance = queries / (queries - 1) * float(residuals @ residuals) / cases**2
    effective = min(fraction * (1 - fraction) / variance, cases) if variance > 0 else float(queries)
    return _wilson_bounds(fraction, effective * worth, float(stdtrit(queries - 1, _UPPER)))


def _wilson_bounds(fraction: float, trials: float, z: float) -> tuple[float, float]:
    middle = fraction + z * z / (2 * trials)
    reach = z * float(np.sqrt(fraction * (1 - fraction) / trials + z * z / (4 * trials**2)))
    whole = 1 + z * z / trials
    # If the proportion is 0 or 1, one bound equals it exactly. A division would round this bound.
    return (middle - reach) / whole if fraction else 0.0, (middle + reach) / whole if fraction < 1 else 1.0
