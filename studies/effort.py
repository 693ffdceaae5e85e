"""Effort of an approximate index at a recall, and the size of its files; for `gap.py` and `benchmarks/indexes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log, nan
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.retrieval.index.approximate.ann_index import ApproximateIndex, Finder
from raytriever.retrieval.index.approximate.faiss_indexes import Ivf
from raytriever.retrieval.index.approximate.index_recall import OperatingPoint, measure

_STEP = 1.25
MOST_EFFORT = 4_096


def finder_bytes(finder: Finder) -> int:
    """Return the bytes of a finder's files: what it needs in addition to the embeddings."""
    with TemporaryDirectory() as folder:
        finder.save(Path(folder))
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def efforts(index: ApproximateIndex, k: int) -> Iterator[int]:
    """Yield efforts from the least on, each about a quarter higher than the one before."""
    effort, most = k, min(MOST_EFFORT, len(index.embeddings))
    if isinstance(index.finder, Ivf):
        effort, most = 1, min(most, index.finder.index.nlist)
    while effort < most:
        yield effort
        effort = max(effort + 1, int(effort * _STEP))
    yield most


def at_recall(
    index: ApproximateIndex,
    queries: Float32[ndarray, "queries width"],
    true: Int64[ndarray, "queries k"],
    target: float,
) -> OperatingPoint:
    """Find the least effort that reaches a recall, and interpolate the number of candidates at that recall.

    The logarithm of the candidates is interpolated between the two efforts around the target. If the least effort
    already exceeds the target, its candidates are returned. If no effort reaches the target, they are NaN."""
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
