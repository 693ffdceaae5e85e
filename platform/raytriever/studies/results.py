"""Results of a study: the metrics of every row on every data set, by seed and by query, and comparisons of two rows.

Both seeds and queries make results uncertain. A difference counts if two conditions hold: the paired t-test over
queries, on the mean of each query over the seeds, gives p < 0.05, and the difference has the same sign in every seed.
Any other difference is noise. The pooled AUC has no value for a single query; the test uses its pseudo-values
(`metrics.auc`). A metric that does not come from queries, as a number of steps, is tested over seeds; with one seed it
cannot be tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.significance import LEVEL, paired_t_test

ABOVE, BELOW, NOISE = "above", "below", "within noise"
Cell = tuple[str, str]  # a row of the table, a data set


@dataclass(frozen=True)
class SeedMetrics:
    """Metrics of one training on one data set.

    Args:
        seed: seed of the training.
        metrics: metrics by name, including those that do not come from queries, as `steps_to_best`.
        per_query: values by query, in the same order for all trainings of a study, of the metrics that have them; NaN
            for a query without a value.
    """

    seed: int
    metrics: Mapping[str, float]
    per_query: Mapping[str, Float64[ndarray, " queries"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Comparison of a row with another one on one data set and metric.

    Args:
        difference: difference of their means over seeds.
        p: p-value of the paired t-test; NaN if nothing can be tested.
        outcome: `ABOVE`, `BELOW` or `NOISE`.
    """

    difference: float
    p: float
    outcome: str


@dataclass(frozen=True)
class StudyResults:
    """Metrics of all rows on all data sets.

    Args:
        cells: by row and data set, the metrics of each seed, seeds ascending.
    """

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
        return bool(seeds) and all(metric in one.metrics for one in seeds or ())

    def values(self, row: str, dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
        """Return the value of each seed.

        Raises:
            KeyError: the row, data set or metric does not exist.
        """
        return np.array([one.metrics[metric] for one in self.cells[row, dataset]], np.float64)

    def mean(self, row: str, dataset: str, metric: str) -> float:
        """Return the mean over the seeds."""
        return float(self.values(row, dataset, metric).mean())

    def deviation(self, row: str, dataset: str, metric: str) -> float:
        """Return the standard deviation over the seeds; NaN if there is only one."""
        values = self.values(row, dataset, metric)
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def per_query(self, row: str, dataset: str, metric: str) -> Float64[ndarray, "seeds queries"] | None:
        """Return the values by seed and query; None if the metric has no values by query."""
        seeds = self.cells[row, dataset]
        if any(metric not in one.per_query for one in seeds):
            return None
        return np.stack([one.per_query[metric] for one in seeds])

    def compare(self, row: str, other: str, dataset: str, metric: str) -> Comparison:
        """Compare `row` - `other`.

        A row with a single seed is compared with every seed of the other. If both have several seeds but not equally
        many, only their means are compared.

        Raises:
            KeyError: a row, the data set or the metric does not exist.
        """
        ours, theirs = self.values(row, dataset, metric), self.values(other, dataset, metric)
        difference = float(ours.mean() - theirs.mean())
        # A row that is not trained has one value for all seeds.
        by_seed = ours - theirs if len(ours) == len(theirs) or 1 in (len(ours), len(theirs)) else np.array([difference])
        queries, other_queries = (self.per_query(one, dataset, metric) for one in (row, other))
        if queries is not None and other_queries is not None:
            p = _paired_p_value(queries.mean(axis=0), other_queries.mean(axis=0))
        else:
            p = _paired_p_value(by_seed, np.zeros(len(by_seed)))
        if not p < LEVEL or (np.sign(by_seed) != np.sign(difference)).any():
            return Comparison(difference, p, NOISE)
        return Comparison(difference, p, ABOVE if difference > 0 else BELOW)


def format_outcome(p: float, outcome: str) -> str:
    """Return p-value and outcome of a comparison in brackets; without a p-value if nothing was tested."""
    return f"({f'p {p:.2g}, ' if not math.isnan(p) else ''}{outcome})"


def _paired_p_value(ours: Float64[ndarray, " values"], theirs: Float64[ndarray, " values"]) -> float:
    """Return the p-value of the paired t-test; NaN with fewer than two pairs of values."""
    valued = np.isfinite(ours) & np.isfinite(theirs)
    return paired_t_test(ours[valued], theirs[valued]).p_value if valued.sum() >= 2 else float("nan")
