"""Search size of an index at a recall, and the size of its files; for `gap.py` and `benchmarks/indexes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log, nan
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxtyping import Float32, Int64
from numpy import ndarray

from raytriever.retrieval.index.approximate.ann_index import AnnIndex, ApproximateIndex
from raytriever.retrieval.index.approximate.faiss_indexes import Ivf
from raytriever.retrieval.index.approximate.index_recall import OperatingPoint, evaluate_recall

_STEP = 1.25
LARGEST_SEARCH = 4_096


def ann_index_bytes(ann_index: AnnIndex) -> int:
    """Return the bytes of an ANN index's files: what it needs in addition to the embeddings."""
    with TemporaryDirectory() as folder:
        ann_index.save(Path(folder))
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def search_sizes(index: ApproximateIndex, k: int) -> Iterator[int]:
    """Yield search sizes from the least on, each about a quarter higher than the one before."""
    search_size, most = k, min(LARGEST_SEARCH, len(index.embeddings))
    if isinstance(index.ann_index, Ivf):
        search_size, most = 1, min(most, index.ann_index.index.nlist)
    while search_size < most:
        yield search_size
        search_size = max(search_size + 1, int(search_size * _STEP))
    yield most


def at_recall(
    index: ApproximateIndex,
    queries: Float32[ndarray, "queries dim"],
    true: Int64[ndarray, "queries k"],
    target: float,
) -> OperatingPoint:
    """Find the smallest search size that reaches a recall, and interpolate the number of candidates at that recall.

    The logarithm of the candidates is interpolated between the two search sizes around the target. If the smallest
    search size already exceeds the target, its candidates are returned. If no search size reaches the target, they are
    NaN."""
    below: OperatingPoint | None = None
    for search_size in search_sizes(index, true.shape[1]):
        above = evaluate_recall(index, queries, true, search_size, timed=False)
        if above.recall >= target:
            if below is None or above.recall == below.recall:
                return above
            fraction = (target - below.recall) / (above.recall - below.recall)
            candidates = exp(log(below.candidates) * (1 - fraction) + log(above.candidates) * fraction)
            return replace(above, recall=target, candidates=candidates)
        below = above
    return OperatingPoint(0, below.recall if below else 0.0, nan, nan)
