"""Query-document gap: distances of queries from documents, and the work of indexes for both.

    MMD^2(Q, Y)      = |mean q - mean y|^2        (out-of-distribution paper, Eq. 2)
    MMD^2({q}, Y)    = |q - mean y|^2             (scores of single queries, Figure 1 of that paper)

Both are the squared maximum mean discrepancy of a linear kernel. Without a gap an index scores as many candidates for
queries as for held-out passages, at the same recall (out-of-distribution paper, section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from time import perf_counter

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.errors import DataError
from raytriever.index.approximate.build import DocumentVectors, build_index
from raytriever.index.approximate.config import IndexConfig
from raytriever.index.approximate.index import ApproximateIndex
from raytriever.index.approximate.measure import OperatingPoint, at_recall, efforts, measure
from raytriever.index.exact.search import top_k

# Candidates are compared at this recall@K; curves are measured at each of `CUTOFFS`.
RECALL, K = 0.95, 10
CUTOFFS = (10, 100)
# Settings of a curve: numbers of lists that are probed, and beam widths of a graph search.
LISTS, BEAMS = (1, 2, 4, 8, 16, 32, 64), (10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320)
# Ratios of candidates with HNSW: there is no gap up to the first, and a gap from the second on.
NO_GAP, CLEAR_GAP = 1.1, 1.5


@dataclass(frozen=True)
class GapEmbeddings:
    """Embeddings of a gap. Passages held out are searched like queries; RoarGraph is built from training queries."""

    documents: Float32[ndarray, "documents width"]
    held_out: Float32[ndarray, "passages width"]
    queries: Float32[ndarray, "queries width"]
    training: Float32[ndarray, "training width"]


@dataclass(frozen=True)
class Gap:
    """MMD^2 from the documents: of all queries, of all held-out passages, and as scores of each of them."""

    queries: float
    held_out: float
    query_scores: Float64[ndarray, " queries"]
    held_out_scores: Float64[ndarray, " passages"]

    @property
    def beyond(self) -> float:
        """Share of pairs of a query and a held-out passage in which the query has the higher score, 0 to 1.

        A tie counts one half. 0.5 means that the scores do not separate queries from passages."""
        ordered = np.sort(self.held_out_scores)
        below = np.searchsorted(ordered, self.query_scores, "left") + np.searchsorted(
            ordered, self.query_scores, "right"
        )
        return float(below.mean() / 2 / len(ordered))


def measure_gap(
    documents: Float32[ndarray, "documents width"],
    queries: Float32[ndarray, "queries width"],
    held_out: Float32[ndarray, "passages width"],
) -> Gap:
    """Return the distances of queries and held-out passages from the documents; each has at least one row."""
    centre = documents.mean(0, dtype=np.float64)

    def distances(vectors: ndarray) -> tuple[float, ndarray]:
        return float(np.square(vectors.mean(0, dtype=np.float64) - centre).sum()), np.square(vectors - centre).sum(1)

    (of_queries, scores), (of_passages, passage_scores) = distances(queries), distances(held_out)
    return Gap(of_queries, of_passages, scores, passage_scores)


def query_positive_distance(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    of: Int64[ndarray, " pairs"],
    to: Int64[ndarray, " pairs"],
) -> float:
    """Return the mean Euclidean distance of queries and their positives, of rows `of` and `to`, as training logs it."""
    return float(np.linalg.norm(queries[of].astype(np.float64) - documents[to], axis=1).mean())


@dataclass(frozen=True)
class IndexMeasurement:
    """Cost and recall of one index.

    Args:
        build_seconds: seconds to build the index on all cores.
        bytes: size of the index without the embeddings.
        curves: operating points for the queries, by k.
        queries, held_out: operating points at the same recall@10. This recall is 0.95, or the recall of the least
            effort if that is higher for either. Candidates are NaN if the library does not count them or the recall
            is not reached.
    """

    build_seconds: float
    bytes: int
    curves: dict[int, list[OperatingPoint]]
    queries: OperatingPoint
    held_out: OperatingPoint

    @property
    def ratio(self) -> float:
        """Candidates for queries divided by those for held-out passages; ratio of efforts if they are not counted."""
        if np.isnan(self.queries.candidates) and self.queries.effort and self.held_out.effort:
            return self.queries.effort / self.held_out.effort
        return self.queries.candidates / self.held_out.candidates


def hold_out(
    embeddings: Float32[ndarray, "documents width"], count: int, seed: int
) -> tuple[Int64[ndarray, " kept"], Int64[ndarray, " passages"]]:
    """Draw passages that are searched like queries; return the rows of the others, and theirs, both ascending."""
    if 2 * count > len(embeddings):
        raise DataError(f"{len(embeddings):,} passages are too few to hold out {count:,} of them")
    positions = np.sort(np.random.default_rng(seed).choice(len(embeddings), count, replace=False))
    return np.setdiff1d(np.arange(len(embeddings)), positions), positions


def measure_index(data: GapEmbeddings, config: IndexConfig, seed: int) -> IndexMeasurement:
    """Build one index and measure it."""
    began = perf_counter()
    index = build_index(DocumentVectors.of(data.documents), config, data.training, seed, torch.get_num_threads())
    seconds = perf_counter() - began
    curves = {}
    for k in CUTOFFS:
        true = _exact_neighbours(data, data.queries, k)
        curves[k] = [measure(index, data.queries, true, effort) for effort in _efforts_of_curve(index, k, config)]
    if config.index == "flat":
        exact = OperatingPoint(1, 1.0, float(len(data.documents)), nan)
        return IndexMeasurement(
            build_seconds=seconds, bytes=index.finder.bytes, curves=curves, queries=exact, held_out=exact
        )
    sets = [(queries, _exact_neighbours(data, queries, K)) for queries in (data.queries, data.held_out)]
    # The least effort may already exceed 0.95 for one of the sets; candidates are compared at one recall.
    least = next(efforts(index, K))
    target = max(RECALL, *(measure(index, *one, least, timed=False).recall for one in sets))
    at_queries, at_passages = (at_recall(index, *one, target) for one in sets)
    return IndexMeasurement(
        build_seconds=seconds, bytes=index.finder.bytes, curves=curves, queries=at_queries, held_out=at_passages
    )


def _exact_neighbours(data: GapEmbeddings, queries: ndarray, k: int) -> Int64[ndarray, "queries k"]:
    return top_k(queries, data.documents, k, np.arange(len(data.documents)))[1]


def _efforts_of_curve(index: ApproximateIndex, k: int, config: IndexConfig) -> list[int]:
    if config.index == "flat":
        return [1]
    if config.index in ("ivf", "ivfpq"):
        return list(LISTS)
    return [beam for beam in BEAMS if beam >= k]


def describe_gap(indexes: dict[str, IndexMeasurement]) -> str:
    """Return a sentence that says whether approximate search costs more for queries than for passages."""
    if "hnsw" not in indexes or np.isnan(indexes["hnsw"].ratio):
        return "unknown whether there is a gap: HNSW was not measured, or did not reach 95 % recall"
    ratio = indexes["hnsw"].ratio
    ratio_text = f"at equal recall HNSW scores {ratio:.2f} x as many candidates for queries as for held-out passages"
    if ratio <= NO_GAP:
        return f"no gap: {ratio_text}"
    if ratio < CLEAR_GAP:
        return f"a slight gap: {ratio_text}"
    roar = indexes.get("roargraph")
    return f"a gap: {ratio_text}" + (
        "" if roar is None or np.isnan(roar.ratio) else f", RoarGraph at {roar.ratio:.2f} x"
    )
