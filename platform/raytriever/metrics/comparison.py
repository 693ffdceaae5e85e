"""Two systems compared over several data sets, and the marks of significance in tables.

The paper (Training dense retrievers with multiple positive passages, Tables 2, 4 and 5) marks a figure "+" or "-" where
it is significantly above or below that of one baseline, and with a filled or an open diamond for a second baseline: by
the two-sided paired t-test at p < 0.05, each data set for itself. Here Holm's correction over the data sets comes
first, as a row of many data sets would else hold marks by chance; for the marks as in the paper compare one data set
at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.holm import holm
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.paired import EffectSize, TTest, difference_interval, effect_size, paired_t_test
from raytriever.metrics.randomisation import Randomisation, randomisation_test

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
