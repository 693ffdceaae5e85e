"""Metrics of a table's rows (trained models, systems) on data sets, by seed and query, and comparisons of the rows.

Results are uncertain for two reasons: another seed trains another encoder, and other queries give other metrics. A
difference is significant if `metrics.significance_tests.combined_t_test` gives p < 0.05. Its standard error has one
part from the queries (their differences, averaged over the seeds) and one from each trained row (the values of its
seeds). The pooled AUC has no value for a single query; the test uses its pseudo-values (`metrics.auc`). A metric that
does not come from queries, such as a number of steps, has only the error from the seeds. A row that was trained with
one seed cannot be tested, because its variation over seeds is unknown."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from scipy.special import stdtrit

from raytriever.evaluation.differences.system_significance import corrected
from raytriever.evaluation.results import TestedPair
from raytriever.metrics.significance_tests import LEVEL, combined_t_test

ABOVE, BELOW, NOISE, UNTESTED = "above", "below", "within noise", "not tested"
Cell = tuple[str, str]  # names of a row of the table and of a data set


@dataclass(frozen=True)
class SeedMetrics:
    """Metrics of one training on one data set."""

    seed: int | None  # seed of the training; None if nothing was trained, as for BM25
    # Metrics by name, including those that do not come from queries, such as `steps_to_best`.
    metrics: Mapping[str, float]
    # Values by query for each metric that has them, in the same order for all trainings; NaN for a query without a
    # value.
    per_query: Mapping[str, Float64[ndarray, " queries"]] = field(default_factory=dict)


@dataclass(frozen=True)
class SeedComparison:
    """Comparison of a row with another row on one data set and metric.

    `low` and `high` are the 95 % interval of the difference. The outcome is `ABOVE`, `BELOW` or `NOISE`. If no test is
    possible, for example with one seed, it is `UNTESTED`, and all numbers except the difference are NaN."""

    difference: float
    p: float = math.nan
    outcome: str = UNTESTED
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class SeededResults:
    """Metrics of each seed, in ascending order of the seeds, by row and data set."""

    cells: Mapping[Cell, Sequence[SeedMetrics]]

    @property
    def rows(self) -> list[str]:
        """Rows in the order of the table."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets in the order of the table."""
        return list(dict.fromkeys(dataset for _, dataset in self.cells))

    def has(self, row: str, dataset: str, metric: str) -> bool:
        """Return whether every seed of the row has this metric on this data set."""
        seeds = self.cells.get((row, dataset))
        return bool(seeds) and all(metric in seed.metrics for seed in seeds or ())

    def values(self, row: str, dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
        """Return the value of the metric for each seed."""
        return np.array([cell.metrics[metric] for cell in self.cells[row, dataset]], np.float64)

    def mean(self, row: str, dataset: str, metric: str) -> float:
        """Return the mean of the metric over the seeds."""
        return float(self.values(row, dataset, metric).mean())

    def deviation(self, row: str, dataset: str, metric: str) -> float:
        """Return the standard deviation of the metric over the seeds, or NaN if there is only one seed."""
        values = self.values(row, dataset, metric)
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def per_query(self, row: str, dataset: str, metric: str) -> Float64[ndarray, "seeds queries"] | None:
        """Return the values of the metric by seed and query, or None if the metric has no values by query."""
        seeds = self.cells[row, dataset]
        if any(metric not in seed.per_query for seed in seeds):
            return None
        return np.stack([seed.per_query[metric] for seed in seeds])

    def compare(self, row: str, other: str, dataset: str, metric: str) -> SeedComparison:
        """Test the difference `row` - `other`."""
        return self.contrast({row: 1, other: -1}, [dataset], metric)

    def contrast(
        self, weights: Mapping[str, float], datasets: Sequence[str], metric: str, against: float = 0.0
    ) -> SeedComparison:
        """Compare the weighted sum of rows, averaged over the data sets, with the number `against`."""
        by_seed = {row: np.mean([self.values(row, dataset, metric) for dataset in datasets], axis=0) for row in weights}
        difference = float(sum(weight * by_seed[row].mean() for row, weight in weights.items()))
        errors = []
        for row, weight in weights.items():
            if self.cells[row, datasets[0]][0].seed is not None:
                if len(by_seed[row]) < 2:
                    return SeedComparison(difference)
                errors.append(_squared_error(weight * by_seed[row]))
        for dataset in datasets:
            by_query = [(weight, self.per_query(row, dataset, metric)) for row, weight in weights.items()]
            if all(values is not None for _, values in by_query):
                values = sum(weight * values.mean(axis=0) for weight, values in by_query if values is not None)
                values = values[np.isfinite(values)] / len(datasets)
                if len(values) < 2:
                    return SeedComparison(difference)
                errors.append(_squared_error(values))
        if not errors:
            return SeedComparison(difference)
        test = combined_t_test(difference - against, errors)
        outcome = NOISE if not test.p_value < LEVEL else ABOVE if difference > against else BELOW
        margin = float(stdtrit(test.degrees, 1 - LEVEL / 2)) * math.sqrt(sum(error for error, _ in errors))
        return SeedComparison(difference, test.p_value, outcome, difference - margin, difference + margin)


def seeded_pair_rows(
    results: SeededResults, wanted: Callable[[str, str], bool] = lambda row, other: True
) -> list[TestedPair]:
    """Test every `wanted` pair of rows on each data set, as `pair_rows` does, but over queries and seeds.

    Holm's correction is over the pairs and data sets of a metric. Pairs that cannot be tested are left out."""
    rows: list[TestedPair] = []
    for metric in dict.fromkeys(name for seeds in results.cells.values() for name in seeds[0].metrics):
        tested: list[TestedPair] = []
        for dataset, pair in itertools.product(results.datasets, itertools.combinations(results.rows, 2)):
            if wanted(*pair) and all(results.has(row, dataset, metric) for row in pair):
                better, worse = sorted(pair, key=lambda row: -results.mean(row, dataset, metric))
                one = results.compare(better, worse, dataset, metric)
                if one.outcome != UNTESTED:
                    numbers = one.difference, one.low, one.high, one.p, one.p
                    tested.append(TestedPair(dataset, metric, better, worse, *numbers))
        rows += corrected(tested)
    return rows


def format_outcome(p: float, outcome: str) -> str:
    """Format the p-value and the outcome of a comparison, in brackets."""
    return f"({outcome})" if math.isnan(p) else f"(p {p:.2g}, {outcome})"


def _squared_error(values: Float64[ndarray, " values"]) -> tuple[float, int]:
    return float(values.var(ddof=1) / len(values)), len(values) - 1
