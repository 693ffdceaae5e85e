"""The paired t-test on per-query values, and how large the difference is.

    t = mean(d) / (s_d / sqrt(n)),   d_q = system_q - baseline_q,   n - 1 degrees of freedom, two-sided

    Cohen's d_z = mean(d) / s_d,   Hedges' g_z = J d_z,   J = Γ(f / 2) / (sqrt(f / 2) Γ((f - 1) / 2)),   f = n - 1

The test is the one of the papers (two-sided, Training dense retrievers with multiple positive passages, Table 2). The
effect sizes are those of paired values (Cohen, 1988; Lakens, 2013), with Hedges' correction (1981) for the upward bias
of small n. A p-value falls with every further query, an effect size does not: a large data set makes the smallest
difference significant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import gammaln, stdtr, stdtrit

from raytriever.metrics.inputs import check_confidence, paired_values


@dataclass(frozen=True)
class TTest:
    """Student's t, its two-sided p-value, and the degrees of freedom."""

    statistic: float
    p_value: float
    degrees: int


@dataclass(frozen=True)
class EffectSize:
    """The mean difference in standard deviations of the differences, as estimated and corrected for few queries."""

    cohen: float
    hedges: float


def paired_t_test(system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"]) -> TTest:
    """Whether the mean of `system - baseline` differs from 0.

    Where no query differs t is 0 and p is 1; where all differ by the same, t is infinite and p is 0.

    Raises:
        MetricInputError: the values are not paired, not finite, or of fewer than two queries.
    """
    differences = paired_values(system, baseline)
    degrees = len(differences) - 1
    statistic = _ratio(differences) * np.sqrt(len(differences))
    return TTest(float(statistic), float(2 * stdtr(degrees, -abs(statistic))), degrees)


def difference_interval(
    system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the mean of `system - baseline` that belongs to the paired t-test.

        mean(d) -+ t_{(1 + confidence) / 2, n - 1} s_d / sqrt(n)

    It is without 0 exactly where the test has p < 1 - confidence.

    Raises:
        MetricInputError: as `paired_t_test`, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    differences = paired_values(system, baseline)
    mean, count = float(differences.mean()), len(differences)
    half = float(stdtrit(count - 1, (1 + confidence) / 2) * differences.std(ddof=1) / np.sqrt(count))
    return mean - half, mean + half


def effect_size(system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"]) -> EffectSize:
    """How large the mean of `system - baseline` is; positive where the system is ahead, infinite if all differ alike.

    Raises:
        MetricInputError: the values are not paired, not finite, or of fewer than two queries.
    """
    differences = paired_values(system, baseline)
    half = (len(differences) - 1) / 2
    # Γ(0) is infinite: of two queries nothing is left of the estimate.
    correction = np.exp(gammaln(half) - gammaln(half - 0.5)) / np.sqrt(half) if half > 0.5 else 0.0
    cohen = _ratio(differences)
    return EffectSize(cohen, float(cohen * correction) if correction else float("nan"))


def _ratio(differences: Float64[ndarray, " queries"]) -> float:
    """Mean over standard deviation; 0 / 0 is 0. What rounding leaves of equal differences is no deviation."""
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    if deviation <= 1e-14 * abs(mean):
        return 0.0 if mean == 0 else float(np.copysign(np.inf, mean))
    return mean / deviation
