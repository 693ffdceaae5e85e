"""Significance tests on per-query values of two systems: paired t-test and randomisation test.

`combined_t_test` tests a difference over queries and seeds. `holm` corrects the p-values of several tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import stdtr, stdtrit

from raytriever.metrics.inputs import MetricInputError, paired_differences


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


# Marks for better and for worse than the first baseline, and than the second.
FIRST_MARKS, SECOND_MARKS = ("+", "-"), ("◆", "◇")
LEVEL = 0.05
EXACT_QUERIES = 20
# Signs drawn at once.
BLOCK = 1 << 22


def paired_t_test(system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"]) -> PairedTest:
    """Test by the paired t-test if the mean of `system - baseline` differs from 0.

        t = mean(d) / (s_d / sqrt(n)),   d_q = system_q - baseline_q,   n - 1 degrees of freedom, two-sided
        interval of the mean = mean(d) -+ t_{0.975, n - 1} s_d / sqrt(n),   effect d_z = mean(d) / s_d

    It is the test of the papers (Training dense retrievers with multiple positive passages, Table 2). The interval
    excludes 0 exactly if p < 0.05. If no query differs, t is 0 and p is 1. If all queries differ by the same amount, t
    and the effect are infinite and p is 0. A p-value falls with every further query, and the effect size (Cohen, 1988)
    does not: a large data set makes the smallest difference significant.
    """
    differences = paired_differences(system, baseline)
    mean, deviation, count = float(differences.mean()), float(differences.std(ddof=1)), len(differences)
    # A deviation that is only rounding error counts as 0, and 0 / 0 is 0.
    if deviation > 1e-14 * abs(mean):
        effect = mean / deviation
    else:
        effect = float(np.copysign(np.inf, mean)) if mean else 0.0
    statistic = float(effect * np.sqrt(count))
    half = float(stdtrit(count - 1, 1 - LEVEL / 2)) * deviation / float(np.sqrt(count))
    p_value = float(2 * stdtr(count - 1, -abs(statistic)))
    return PairedTest(mean, mean - half, mean + half, statistic, p_value, effect)


def combined_t_test(difference: float, errors: Sequence[tuple[float, int]]) -> TTest:
    """Test a difference whose error has independent parts, such as that of the queries and that of the seeds.

        t = difference / sqrt(Σ v_i),   (Σ v_i)² / Σ (v_i² / f_i) degrees of freedom (Satterthwaite, 1946)

    For a mean over queries and seeds this is min F' (Clark, 1973): a part of the error that belongs to both, their
    interaction, counts twice, so false differences are at most as frequent as the level. `benchmarks/
    interval_coverage.py` simulates how frequent they are.

    Args:
        errors: squared standard error v_i of each part, at least 0, and its degrees of freedom f_i, at least 1.

    Examples:
        >>> combined_t_test(0.02, [(0.003**2, 199), (0.008**2, 2)])  # the seeds decide
        TTest(statistic=2.340..., p_value=0.119..., degrees=2.6...)
    """
    variance = sum(part for part, _ in errors)
    if variance == 0:
        statistic = float(np.copysign(np.inf, difference)) if difference else 0.0
        return TTest(statistic, float(difference == 0), float(sum(degrees for _, degrees in errors)))
    degrees = float(variance**2 / sum(part**2 / one for part, one in errors))
    statistic = float(difference / np.sqrt(variance))
    return TTest(statistic, float(2 * stdtr(degrees, -abs(statistic))), degrees)


def randomisation_test(
    system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"], draws: int = 10_000, seed: int = 0
) -> float:
    """Compute the two-sided p-value of the paired randomisation test that the mean of `system - baseline` is 0.

    The test is Fisher's (1935); for retrieval see Smucker, Allan & Carterette (2007). If two systems were the same, the
    two values of a query could be exchanged, so each difference d_q could have either sign. The p-value is the share of
    sign assignments whose mean is at least as far from 0 as the observed one. The differences may have any
    distribution.

        p = #{s in {-1, 1}^n : |Σ s_q d_q| >= |Σ d_q|} / 2^n                      up to 20 queries that differ: exact
        p = (1 + #{drawn s : |Σ s_q d_q| >= |Σ d_q|}) / (1 + draws)                otherwise (Phipson & Smyth, 2010)

    The added 1 is the observed assignment. Without it the p-value could be 0, which no test has. Queries without a
    difference have no influence and get no sign.

    Args:
        system, baseline: one value of each query, in the same order.
        draws: random assignments if there are too many to count. The error of a p-value is about
            2 sqrt(p (1 - p) / draws).
        seed: seed of the draws; the same seed gives the same p-value.
    """
    differences = paired_differences(system, baseline)
    differences = differences[differences != 0]
    # Sums that are equal but for the order of addition count as equal.
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if len(differences) <= EXACT_QUERIES:
        sums = np.zeros(1)
        for difference in differences:
            sums = np.concatenate([sums + difference, sums - difference])
        return float((np.abs(sums) >= observed).mean())
    rng = np.random.default_rng(seed)
    beyond, length = 0, -(-len(differences) // 8)
    step = max(1, BLOCK // len(differences))
    for start in range(0, draws, step):
        count = min(step, draws - start)
        bits = np.frombuffer(rng.bytes(count * length), np.uint8).reshape(count, length)
        signs = np.unpackbits(bits, axis=1, count=len(differences)).astype(np.float64)
        beyond += int((np.abs(2 * (signs @ differences) - differences.sum()) >= observed).sum())
    return (beyond + 1) / (draws + 1)


def holm(p_values: Sequence[float] | Float64[ndarray, " tests"]) -> Float64[ndarray, " tests"]:
    """Correct the p-values of several tests by Holm's method (1979).

        p'_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)),   p_(1) <= ... <= p_(m)

    The probability of any false finding then stays at the level. Without a correction, a comparison over fourteen data
    sets finds something at 0.05 in every second case. Holm's method holds for any dependence between the tests, and
    finds at least as much as Bonferroni's. They have the order of the tests.
    """
    values = np.asarray(p_values, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise MetricInputError(f"p-values {values.tolist()}", "Holm's correction", "give values from 0 to 1")
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected
