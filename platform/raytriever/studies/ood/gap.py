"""Query-document gap: distances of queries from documents, and the work of indexes for both.

    MMD^2(Q, Y)      = |mean q - mean y|^2        (out-of-distribution paper, Eq. 2)
    MMD^2({q}, Y)    = |q - mean y|^2             (its scores of single queries, Figure 1)

Both are the squared maximum mean discrepancy of a linear kernel. Without a gap an index reads as many candidates for
queries as for passages held out, at the same recall (out-of-distribution paper, section 2)."""

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
from raytriever.index.approximate.measure import OperatingPoint, at_recall, curve, efforts, measure
from raytriever.index.exact.search import top_k


@dataclass(frozen=True)
class Gap:
    """Both clouds beside the documents.

    Args:
        queries, held_out: MMD^2 of the whole clouds.
        query_scores, held_out_scores: of each query, and of each passage held out.
    """

    queries: float
    held_out: float
    query_scores: Float64[ndarray, " queries"]
    held_out_scores: Float64[ndarray, " passages"]

    @property
    def beyond(self) -> float:
        """The share of pairs of a query and a held-out passage in which the query's score is the higher: 0.5 where the
        scores tell no difference."""
        ordered = np.sort(self.held_out_scores)
        below = np.searchsorted(ordered, self.query_scores, "left") + np.searchsorted(
            ordered, self.query_scores, "right"
        )
        return float(below.mean() / 2 / len(ordered))


def gap(
    documents: Float32[ndarray, "documents width"],
    queries: Float32[ndarray, "queries width"],
    held_out: Float32[ndarray, "passages width"],
) -> Gap:
    """Measure both clouds; each has at least one row."""
    centre = documents.mean(0, dtype=np.float64)

    def cloud(vectors: ndarray) -> tuple[float, ndarray]:
        return float(np.square(vectors.mean(0, dtype=np.float64) - centre).sum()), np.square(vectors - centre).sum(1)

    (of_queries, scores), (of_passages, passage_scores) = cloud(queries), cloud(held_out)
    return Gap(of_queries, of_passages, scores, passage_scores)


def query_positive_distance(
    queries: Float32[ndarray, "queries width"],
    documents: Float32[ndarray, "documents width"],
    of: Int64[ndarray, " pairs"],
    to: Int64[ndarray, " pairs"],
) -> float:
    """The mean Euclidean distance between queries and their positives, what training watches."""
    return float(np.linalg.norm(queries[of].astype(np.float64) - documents[to], axis=1).mean())


RECALL, K = 0.95, 10
CUTOFFS = (10, 100)
# Settings of a curve: lists probed, documents held.
LISTS, BEAMS = (1, 2, 4, 8, 16, 32, 64), (10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320)
# At and below the first HNSW shows no gap; from the second on it does.
NO_GAP, GAP = 1.1, 1.5


@dataclass(frozen=True)
class Material:
    """What a study is over, as embeddings: the documents that are indexed, passages held out of them, queries that are
    asked and queries that RoarGraph is built from."""

    documents: Float32[ndarray, "documents width"]
    held_out: Float32[ndarray, "passages width"]
    queries: Float32[ndarray, "queries width"]
    training: Float32[ndarray, "training width"]


@dataclass(frozen=True)
class IndexFigures:
    """What one index did.

    Args:
        build_seconds: on all cores.
        bytes: beside the embeddings.
        curves: of the queries, by k.
        queries, held_out: at the same recall@10, 0.95 or what the least effort has for either, whichever is most; NaN
            candidates where the library does not tell or the recall is out of reach.
    """

    build_seconds: float
    bytes: int
    curves: dict[int, list[OperatingPoint]]
    queries: OperatingPoint
    held_out: OperatingPoint

    @property
    def ratio(self) -> float:
        """Candidates for queries over those for passages held out; of efforts, where candidates are not told."""
        if np.isnan(self.queries.candidates) and self.queries.effort and self.held_out.effort:
            return self.queries.effort / self.held_out.effort
        return self.queries.candidates / self.held_out.candidates


def hold_out(
    embeddings: Float32[ndarray, "documents width"], count: int, seed: int
) -> tuple[Int64[ndarray, " kept"], Int64[ndarray, " passages"]]:
    """Draw passages that stand in for queries: the positions of the rest, and theirs.

    Raises:
        DataError: fewer than half of the passages would be left.
    """
    if 2 * count > len(embeddings):
        raise DataError(f"{len(embeddings):,} passages are too few to hold out {count:,} of them")
    out = np.sort(np.random.default_rng(seed).choice(len(embeddings), count, replace=False))
    return np.setdiff1d(np.arange(len(embeddings)), out), out


def study(material: Material, config: IndexConfig, seed: int) -> IndexFigures:
    """Build one index and measure it.

    Raises:
        UserError: see `build_index`.
    """
    began = perf_counter()
    index = build_index(
        DocumentVectors.of(material.documents), config, material.training, seed, torch.get_num_threads()
    )
    seconds = perf_counter() - began
    curves = {
        k: curve(index, material.queries, _true(material, material.queries, k), _settings(index, k, config))
        for k in CUTOFFS
    }
    if config.index == "flat":
        whole = OperatingPoint(1, 1.0, float(len(material.documents)), nan)
        return IndexFigures(seconds, index.finder.bytes, curves, whole, whole)
    sets = [(queries, _true(material, queries, K)) for queries in (material.queries, material.held_out)]
    # The least effort may find more than that already for one of them: candidates are compared at one recall.
    least = next(efforts(index, K))
    target = max(RECALL, *(measure(index, *one, least, timed=False).recall for one in sets))
    asked, passages = (at_recall(index, *one, target) for one in sets)
    return IndexFigures(seconds, index.finder.bytes, curves, asked, passages)


def _true(material: Material, queries: ndarray, k: int) -> Int64[ndarray, "queries k"]:
    return top_k(queries, material.documents, k, np.arange(len(material.documents)))[1]


def _settings(index: ApproximateIndex, k: int, config: IndexConfig) -> list[int]:
    if config.index == "flat":
        return [1]
    if config.index in ("ivf", "ivfpq"):
        return list(LISTS)
    return [beam for beam in BEAMS if beam >= k]


def verdict(figures: dict[str, IndexFigures]) -> str:
    """Whether these embeddings have a gap that indexes feel, in words."""
    if "hnsw" not in figures or np.isnan(figures["hnsw"].ratio):
        return "whether there is a gap is not told: HNSW was not measured, or never found 95 %"
    ratio = figures["hnsw"].ratio
    so = f"at equal recall HNSW looks at {ratio:.2f} x the candidates for queries that it does for passages held out"
    if ratio <= NO_GAP:
        return f"no gap: {so}"
    if ratio < GAP:
        return f"a slight gap: {so}"
    roar = figures.get("roargraph")
    return f"a gap: {so}" + ("" if roar is None or np.isnan(roar.ratio) else f", RoarGraph at {roar.ratio:.2f} x")
