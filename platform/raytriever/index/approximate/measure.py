"""Measure an approximate index: recall, candidates scored and queries per second, and format them as a text table.

Measured on one thread, exact scoring of the candidates included. Seconds are processor time, the least of several
passes: they repeat on a machine that does other work too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import exp, isnan, log, nan
from time import process_time

import torch
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.index.approximate.faiss_finders import Ivf
from raytriever.index.approximate.index import ApproximateIndex, recall

# A pass of the clock is repeated for so long, or so often.
SECONDS, PASSES = 0.5, 7
_STEP = 1.25
MOST_EFFORT = 4_096


@dataclass(frozen=True)
class OperatingPoint:
    """One setting of an index, measured over queries.

    Args:
        effort: see `approximate.Finder`.
        recall: mean share of a query's true documents that were found, 0 to 1.
        candidates: mean number of documents scored for a query; NaN where the library does not tell.
        qps: queries answered in a second of one thread; NaN where it was not asked for.
    """

    effort: int
    recall: float
    candidates: float
    qps: float


@contextmanager
def one_thread() -> Iterator[None]:
    """Searches use one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    index: ApproximateIndex,
    queries: Float32[ndarray, "queries width"],
    true: Int64[ndarray, "queries k"],
    effort: int,
    timed: bool = True,
) -> OperatingPoint:
    """Search for the true documents of the queries, k each.

    Args:
        index: asked with `effort` in place of its own.
        queries: at least one.
        true: of an exact search; -1 for none.
        effort: see `approximate.Finder`.
        timed: whether queries a second are measured too.
    """
    k, index = true.shape[1], replace(index, effort=effort)
    with one_thread():
        proposed = index.propose(index.check(queries, k), k, 1)
        _, found = index.search(queries, k)
        qps = len(queries) / _least_seconds(index, queries, k) if timed else nan
    return OperatingPoint(effort, float(recall(found, true).mean()), proposed.candidates, qps)


def _least_seconds(index: ApproximateIndex, queries: ndarray, k: int) -> float:
    least, spent = float("inf"), 0.0
    for _ in range(PASSES):
        began = process_time()
        index.search(queries, k)
        took = max(process_time() - began, 1e-9)
        least, spent = min(least, took), spent + took
        if spent > SECONDS:
            break
    return least


def efforts(index: ApproximateIndex, k: int, most: int = MOST_EFFORT) -> Iterator[int]:
    """Settings from the least on, each about a quarter above the one before."""
    effort, most = k, min(most, len(index.documents))
    if isinstance(index.finder, Ivf):
        effort, most = 1, min(most, index.finder.index.nlist)
    while effort < most:
        yield effort
        effort = max(effort + 1, int(effort * _STEP))
    yield most


def curve(
    index: ApproximateIndex,
    queries: Float32[ndarray, "queries width"],
    true: Int64[ndarray, "queries k"],
    settings: Sequence[int],
    timed: bool = True,
) -> list[OperatingPoint]:
    """A point for every setting."""
    return [measure(index, queries, true, effort, timed) for effort in settings]


def at_recall(
    index: ApproximateIndex,
    queries: Float32[ndarray, "queries width"],
    true: Int64[ndarray, "queries k"],
    target: float,
) -> OperatingPoint:
    """The least effort that reaches a recall, with the candidates at that recall itself.

    Candidates are interpolated, as logarithms, between the two settings around the target; where the least setting is
    beyond it already, they are that setting's, and where none reaches it, NaN.
    """
    below: OperatingPoint | None = None
    for effort in efforts(index, true.shape[1]):
        above = measure(index, queries, true, effort, timed=False)
        if above.recall >= target:
            if below is None or above.recall == below.recall:
                return above
            share = (target - below.recall) / (above.recall - below.recall)
            candidates = exp(log(below.candidates) * (1 - share) + log(above.candidates) * share)
            return replace(above, recall=target, candidates=candidates)
        below = above
    return OperatingPoint(0, below.recall if below else 0.0, nan, nan)


def format_count(value: float) -> str:
    """A number of documents or queries; what a library does not tell is so called."""
    return "not told" if isnan(value) else f"{value:,.0f}"
