"""Measurements of an approximate index: recall, candidates scored and queries per second, as a text table.

Measurements use one thread and include the exact scoring of the proposed rows. Times are the minimum processor time of
several passes, so other work on the machine hardly changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isnan, nan
from time import process_time

import torch
from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.retrieval.index.approximate.ann_index import ApproximateIndex, recall

# A timed search is repeated until it has taken more than `SECONDS` in total, at most `PASSES` times.
SECONDS, PASSES = 0.5, 7


@dataclass(frozen=True)
class OperatingPoint:
    """Measurements of an index at one search size."""

    search_size: int
    recall: float  # mean fraction of a query's true documents that were retrieved, 0 to 1
    candidates: float  # mean number of documents scored for a query; NaN if the library does not report it
    qps: float  # queries per second on one thread; NaN if not timed


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit searches in this context to one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluate_recall(
    index: ApproximateIndex,
    queries: Float32[ndarray, "queries dim"],
    true: Int64[ndarray, "queries k"],
    search_size: int,
    timed: bool = True,
) -> OperatingPoint:
    """Measure recall of each query's k true documents, and the cost of a search, at a given search size.

    `true` holds the documents of an exact search, padded with -1. With `timed`, queries per second are measured too."""
    k, index = true.shape[1], replace(index, search_size=search_size)
    with one_thread():
        proposed = index.propose(index.check(queries, k), k, 1)
        _, retrieved = index.search(queries, k)
        qps = len(queries) / _least_seconds(index, queries, k) if timed else nan
    return OperatingPoint(search_size, float(recall(retrieved, true).mean()), proposed.candidates, qps)


def _least_seconds(index: ApproximateIndex, queries: ndarray, k: int) -> float:
    least, spent = float("inf"), 0.0
    for _ in range(PASSES):
        started = process_time()
        index.search(queries, k)
        seconds = max(process_time() - started, 1e-9)  # the clock may be too coarse for a fast search
        least, spent = min(least, seconds), spent + seconds
        if spent > SECONDS:
            break
    return least


def format_count(value: float) -> str:
    """Format a number of documents or queries. NaN means that the library does not report it."""
    return "unknown" if isnan(value) else f"{value:,.0f}"
