"""Significance tests on per-query values of two systems: paired t-test, randomisation test, effect size.

`compare` tests two systems on several data sets, with Holm's correction over the data sets. `mark` gives the mark of
significance for a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import gammaln, stdtr, stdtrit

from raytriever.metrics.inputs import MetricInputError, check_confidence, paired_differences


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
    differences = paired_differences(system, baseline)
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
    differences = paired_differences(system, baseline)
    mean, count = float(differences.mean()), len(differences)
    half = float(stdtrit(count - 1, (1 + confidence) / 2) * differences.std(ddof=1) / np.sqrt(count))
    return mean - half, mean + half


def effect_size(system: Float64[ndarray, " queries"], baseline: Float64[ndarray, " queries"]) -> EffectSize:
    """How large the mean of `system - baseline` is; positive where the system is ahead, infinite if all differ alike.

    Raises:
        MetricInputError: the values are not paired, not finite, or of fewer than two queries.
    """
    differences = paired_differences(system, baseline)
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
    differences = paired_differences(system, baseline)
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


def holm(p_values: Sequence[float] | Float64[ndarray, " tests"]) -> Float64[ndarray, " tests"]:
    """The corrected p-values, in the order of the tests, to be compared with the level as they are.

    Raises:
        MetricInputError: a p-value is not within 0 and 1.
    """
    given = np.asarray(p_values, np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        raise MetricInputError(f"p-values {given.tolist()}", "Holm's correction", "give values from 0 to 1")
    order = np.argsort(given, kind="stable")
    scaled = given[order] * np.arange(len(given), 0, -1)
    corrected = np.empty(len(given))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected


# Better and worse than the first baseline, and than the second.
FIRST_MARKS, SECOND_MARKS = ("+", "-"), ("◆", "◇")
LEVEL = 0.05

PerDataset = Mapping[str, Float64[ndarray, " queries"]]


@dataclass(frozen=True)
class Comparison:
    """A system against a baseline on one data set, on the per-query values of one metric.

    Args:
        difference: the mean of system - baseline, in units of the metric.
        interval: its 95 % interval, which belongs to the t-test.
        queries: how many.
        t_test, randomisation: both tests, uncorrected.
        corrected_t, corrected_randomisation: their p-values after Holm's correction over the data sets.
        effect: the difference in standard deviations.
    """

    difference: float
    interval: tuple[float, float]
    queries: int
    t_test: TTest
    randomisation: Randomisation
    corrected_t: float
    corrected_randomisation: float
    effect: EffectSize


def compare(system: PerDataset, baseline: PerDataset, draws: int = 10_000, seed: int = 0) -> dict[str, Comparison]:
    """Compare on every data set.

    Args:
        system, baseline: per-query values by data set, the same data sets and in each the same queries in one order.
        draws, seed: of the randomisation tests.

    Raises:
        MetricInputError: the data sets or their queries differ, a value is not finite, or there is one query only.
    """
    if apart := set(system) ^ set(baseline):
        raise MetricInputError(
            f"only one system has {sorted(apart)[0]!r}", "comparison", "give both the same data sets"
        )
    tests = {name: paired_t_test(system[name], baseline[name]) for name in system}
    tossed = {name: randomisation_test(system[name], baseline[name], draws, seed) for name in system}
    by_t = holm([test.p_value for test in tests.values()])
    by_tosses = holm([test.p_value for test in tossed.values()])
    return {
        name: Comparison(
            difference=float((system[name] - baseline[name]).mean()),
            interval=difference_interval(system[name], baseline[name]),
            queries=len(system[name]),
            t_test=tests[name],
            randomisation=tossed[name],
            corrected_t=float(by_t[place]),
            corrected_randomisation=float(by_tosses[place]),
            effect=effect_size(system[name], baseline[name]),
        )
        for place, name in enumerate(system)
    }


def mark(comparison: Comparison, marks: tuple[str, str] = FIRST_MARKS, level: float = LEVEL) -> str:
    """The mark of better or of worse where the corrected t-test is below the level, else nothing."""
    if comparison.corrected_t >= level:
        return ""
    return marks[comparison.difference < 0]
