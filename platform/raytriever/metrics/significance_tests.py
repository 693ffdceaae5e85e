"""Significance tests on per-query values of two systems.

`combined_t_test` tests a difference over queries and seeds. `holm` corrects the p-values of several tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import stdtr, stdtrit

from raytriever.metrics.metric_inputs import MetricInputError, paired_differences


@dataclass(frozen=True)
class PairedTest:
    """Result of `paired_t_test`: mean difference and its 95 % interval, Student's t, two-sided p-value, effect size."""

    difference: float
    low: float
    high: float
    statistic: float
    p_value: float
    effect: float


@dataclass(frozen=True)
class TTest:
    """Result of `combined_t_test`: Student's t, its two-sided p-value, and the degrees of freedom."""

    statistic: float
    p_value: float
    degrees: float


# Marks of a result that is better or worse than the first baseline, and better or worse than the second.
FIRST_MARKS, SECOND_MARKS = ("+", "-"), ("◆", "◇")
LEVEL = 0.05


def paired_t_test(system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"]) -> PairedTest:
    """Test whether the mean of `system - baseline` differs from 0 (paired t-test).

        t = mean(d) / (s_d / sqrt(n)),   d_q = system_q - baseline_q,   n - 1 degrees of freedom, two-sided
        interval of the mean = mean(d) -+ t_{0.975, n - 1} s_d / sqrt(n),   effect d_z = mean(d) / s_d

    It is the test of the papers (Training dense retrievers with multiple positive passages, Table 2). The interval
    excludes 0 exactly if p < 0.05. If no query differs, t is 0 and p is 1. If all queries differ by the same amount, t
    and the effect are infinite and p is 0. In a large data set, even a very small difference is significant, because p
    falls with the number of queries. The effect size (Cohen, 1988) does not fall."""
    differences = paired_differences(system, baseline)
    mean, deviation, count = float(differences.mean()), float(differences.std(ddof=1)), len(differences)
    # Treat a deviation that is only rounding error as 0, and 0 / 0 as 0.
    if deviation > 1e-14 * abs(mean):
        effect = mean / deviation
    else:
        effect = float(np.copysign(np.inf, mean)) if mean else 0.0
    statistic = float(effect * np.sqrt(count))
    half = float(stdtrit(count - 1, 1 - LEVEL / 2)) * deviation / float(np.sqrt(count))
    p_value = float(2 * stdtr(count - 1, -abs(statistic)))
    return PairedTest(mean, mean - half, mean + half, statistic, p_value, effect)


def combined_t_test(difference: float, errors: Sequence[tuple[float, int]]) -> TTest:
    """Test a difference whose error has independent components, such as those of queries and of seeds.

        t = difference / sqrt(Σ v_i),   (Σ v_i)² / Σ (v_i² / f_i) degrees of freedom (Satterthwaite, 1946)

    For a mean over queries and seeds this is min F' (Clark, 1973). Their interaction is in both errors, so false
    differences are at most as frequent as `LEVEL`. `benchmarks/interval_coverage.py` simulates their frequency.

    Args:
        errors: squared standard error v_i of each component, at least 0, and its degrees of freedom f_i, at least 1.
    """
    variance = sum(part for part, _ in errors)
    if variance == 0:
        statistic = float(np.copysign(np.inf, difference)) if difference else 0.0
        return TTest(statistic, float(difference == 0), float(sum(degrees for _, degrees in errors)))
    degrees = float(variance**2 / sum(part**2 / degrees for part, degrees in errors))
    statistic = float(difference / np.sqrt(variance))
    return TTest(statistic, float(2 * stdtr(degrees, -abs(statistic))), degrees)


def holm(p_values: Sequence[float] | Float64[ndarray, " tests"]) -> Float64[ndarray, " tests"]:
    """Correct the p-values of several tests by Holm's method (1979).

        p'_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)),   p_(1) <= ... <= p_(m)

    Then the probability of at least one false finding is at most the level. Without a correction, every second
    comparison over fourteen data sets has a false finding at level 0.05. Holm's method is valid for any dependence
    between the tests, and finds at least as many as Bonferroni's. The corrected values have the order of `p_values`."""
    values = np.asarray(p_values, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise MetricInputError(f"{values.tolist()} are not p-values", "Holm's correction", "give values from 0 to 1")
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected
