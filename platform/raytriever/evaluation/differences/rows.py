"""Rows of differences as the files of runs and evaluations hold them. Imports nothing heavy."""

from __future__ import annotations

from typing import TypedDict


class DifferenceRow(TypedDict):
    """Test of two models on one metric."""

    metric: str
    model: str
    against: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    queries: int


class TestedPair(DifferenceRow):
    """One of all pairs of models, see `significance.pair_rows`."""

    dataset: str
    effect: float | None
