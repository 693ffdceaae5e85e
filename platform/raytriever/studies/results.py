"""What a study found: every row of its table on every data set, by seed and by query, and how two rows compare.

Seeds and queries both make figures uncertain. A difference counts where the paired t-test over queries, of each
query's mean over the seeds, finds it at p < 0.05 *and* no seed has it the other way round; anything less is noise. The
pooled AUC has no value a query; its pseudo-values stand for them (`metrics.auc_pseudo`). What is no figure of queries,
as a number of steps, is tested over seeds, and by one seed nothing is told.
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
    """One training on one data set.

    Args:
        seed: it was trained with.
        metrics: by name; also what is no metric of queries, as `steps_to_best`.
        per_query: of those that have a value a query, in one order for all trainings of a study; NaN where a query has
            none.
    """

    seed: int
    metrics: Mapping[str, float]
    per_query: Mapping[str, Float64[ndarray, " queries"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A row against another on one data set and metric.

    Args:
        difference: of their means over seeds.
        p: of the paired t-test, NaN where nothing can be tested.
        outcome: `ABOVE`, `BELOW` or `NOISE`.
    """

    difference: float
    p: float
    outcome: str


@dataclass(frozen=True)
class StudyResults:
    """All that was measured.

    Args:
        cells: by row and data set, a `SeedMetrics` a seed, ascending.
    """

    cells: Mapping[Cell, Sequence[SeedMetrics]]

    @property
    def rows(self) -> list[str]:
        """All rows, in the order of the table."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def datasets(self) -> list[str]:
        """All data sets, in their order."""
        return list(dict.fromkeys(dataset for _, dataset in self.cells))

    def has(self, row: str, dataset: str, metric: str) -> bool:
        """Whether there is such a figure."""
        found = self.cells.get((row, dataset))
        return bool(found) and all(metric in one.metrics for one in found or ())

    def values(self, row: str, dataset: str, metric: str) -> Float64[ndarray, " seeds"]:
        """One figure a seed.

        Raises:
            KeyError: there is no such row, data set or metric.
        """
        return np.array([one.metrics[metric] for one in self.cells[row, dataset]], np.float64)

    def mean(self, row: str, dataset: str, metric: str) -> float:
        """The mean over the seeds."""
        return float(self.values(row, dataset, metric).mean())

    def deviation(self, row: str, dataset: str, metric: str) -> float:
        """The standard deviation over the seeds; NaN where there is one."""
        values = self.values(row, dataset, metric)
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def per_query(self, row: str, dataset: str, metric: str) -> Float64[ndarray, "seeds queries"] | None:
        """One value a seed and query; None where the metric has none."""
        found = self.cells[row, dataset]
        if any(metric not in one.per_query for one in found):
            return None
        return np.stack([one.per_query[metric] for one in found])

    def compare(self, row: str, other: str, dataset: str, metric: str) -> Comparison:
        """`row` - `other`; seeds of both that stand alone are compared by what the other has at its own.

        Raises:
            KeyError: there is no such row, data set or metric.
        """
        ours, theirs = self.values(row, dataset, metric), self.values(other, dataset, metric)
        difference = float(ours.mean() - theirs.mean())
        # What was not trained has one figure for all seeds.
        by_seed = ours - theirs if len(ours) == len(theirs) or 1 in (len(ours), len(theirs)) else np.array([difference])
        mine, other_ones = self.per_query(row, dataset, metric), self.per_query(other, dataset, metric)
        if mine is not None and other_ones is not None:
            p = _over(mine.mean(axis=0), other_ones.mean(axis=0))
        else:
            p = _over(by_seed, np.zeros(len(by_seed)))
        if not p < LEVEL or (np.sign(by_seed) != np.sign(difference)).any():
            return Comparison(difference, p, NOISE)
        return Comparison(difference, p, ABOVE if difference > 0 else BELOW)


def sureness(p: float, outcome: str) -> str:
    """In brackets, how sure a comparison is and what came of it; without a p-value where there was nothing to test."""
    return f"({f'p {p:.2g}, ' if not math.isnan(p) else ''}{outcome})"


def _over(ours: Float64[ndarray, " values"], theirs: Float64[ndarray, " values"]) -> float:
    """The p-value of the paired t-test, NaN where there are fewer than two pairs."""
    valued = np.isfinite(ours) & np.isfinite(theirs)
    return paired_t_test(ours[valued], theirs[valued]).p_value if valued.sum() >= 2 else float("nan")
