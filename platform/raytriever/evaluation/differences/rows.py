"""Test of two systems as the files of runs and evaluations hold it. Imports nothing heavy."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class TestedPair(TypedDict):
    """Test of two systems on one metric, see `significance.pair_rows`.

    `model` is the better one, and `difference` (at least 0) is its mean minus that of `against`; `low` and `high` are
    the 95 % interval of the difference. `p` is of the two-sided paired t-test, `p_holm` after Holm's correction over
    the pairs and data sets of the metric. `effect` is Cohen's d_z; None if it is infinite. The data set None is the
    mean over the data sets.
    """

    dataset: str | None
    metric: str
    model: str
    against: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    effect: NotRequired[float | None]  # not of a test over seeds
    queries: NotRequired[int]
