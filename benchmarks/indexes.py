"""Approximate indexes compared on the positive control, and the thresholds of RoarGraph.

Run: `python benchmarks/indexes.py [--json PATH] [--documents 100000] [--skip vamana]`. Documents of dimension 128 and
as many training queries, 500 queries that are shifted like the training queries and 500 that are sampled like the
documents (`tests/support/synthetic.py`), all in one process. Indexes are built on all cores and searched on one.
Candidates at recall@10 0.95 are interpolated between two settings. Queries per second are counted in processor seconds,
the least of several passes. RoarGraph and HNSW are searched alternately with the same number of candidates, without the
rest of the search."""

from __future__ import annotations

import sys
from math import isnan, nan
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch
from numpy import ndarray

from ends import End, at_least, at_most, parser, report, reported
from raytriever.retrieval.index.approximate.ann_index import ApproximateIndex
from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_recall import evaluate_recall, one_thread
from raytriever.retrieval.index.approximate.index_settings import INDEXES, IndexConfig
from raytriever.retrieval.index.approximate.neighbor_graph import mark_reachable
from raytriever.retrieval.index.exact_top_k import top_k

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests/support", "studies")]
from synthetic import control

from search_size import ann_index_bytes, at_recall

QUERIES, RECALL, K = 500, 0.95, 10
SEARCH_SIZES = (20, 40, 80, 160)
RUNS = 3
BUILD_SECONDS = 300


def built(
    documents: ndarray, training: ndarray, kinds: list[str]
) -> tuple[dict[str, ApproximateIndex], dict[str, End]]:
    """Build every index; return them with memory and build time."""
    indexes, ends = {}, {}
    for kind in kinds:
        began = perf_counter()
        indexes[kind] = build_index(documents, IndexConfig(index=kind), training, 0, torch.get_num_threads())
        seconds = perf_counter() - began
        ends[f"{kind}: build (s)"] = at_most(seconds, BUILD_SECONDS) if kind == "roargraph" else reported(seconds)
        megabytes = ann_index_bytes(indexes[kind].ann_index) / 1e6
        ends[f"{kind}: memory in addition to the embeddings (MB)"] = reported(megabytes)
    return indexes, ends


def shift_of(indexes: dict[str, ApproximateIndex], sets: dict[str, tuple[ndarray, ndarray]]) -> dict[str, End]:
    """Compare the candidates at equal recall for shifted and for unshifted queries."""
    ends = {}
    for kind, index in indexes.items():
        points = {name: at_recall(index, queries, true, RECALL) for name, (queries, true) in sets.items()}
        for name, point in points.items():
            if not point.search_size:
                ends[f"{kind}: the greatest recall@10 it reaches, {name}"] = reported(point.recall)
            elif isnan(point.candidates):  # Vamana reports no candidates; its beam is used instead
                ends[f"{kind}: documents in the beam at recall@10 {RECALL}, {name}"] = reported(point.search_size)
            else:
                ends[f"{kind}: candidates at recall@10 {RECALL}, {name}"] = reported(point.candidates)
        ratio = points["shifted"].candidates / points["unshifted"].candidates
        if not isnan(ratio):
            thresholds = {"roargraph": ("at most 1.1", ratio <= 1.1), "hnsw": ("above 1.5", ratio > 1.5)}
            ends[f"{kind}: shifted / unshifted candidates (x)"] = End(ratio, *thresholds.get(kind, ("reported", True)))
    return ends


def rate(index: ApproximateIndex, queries: ndarray, search_size: int) -> tuple[float, float]:
    """Return the queries per second of the ANN index on one thread, and its candidates."""
    began = process_time()
    result = index.ann_index.find(queries, K, search_size, 1)
    return len(queries) / (process_time() - began), result.candidates


def speed(roar: ApproximateIndex, hnsw: ApproximateIndex, queries: ndarray) -> dict[str, End]:
    """Compare RoarGraph's rate with HNSW's at the same number of candidates, and the spread of all indexes."""
    ends, ratios = {}, []
    for search_size in SEARCH_SIZES:
        turns = [(rate(roar, queries, search_size), rate(hnsw, queries, search_size)) for _ in range(7)]
        (_, ours), (_, theirs) = turns[0]
        # The same beam scores nearly as many in both; the rest is corrected in proportion.
        ratios.append(median(item[0] / other[0] for item, other in turns) * ours / theirs)
        ends[f"roargraph / hnsw queries a second at {ours:,.0f} candidates (x)"] = at_least(ratios[-1], 0.5)
    return ends


def repeats(indexes: dict[str, ApproximateIndex], queries: ndarray, true: ndarray) -> dict[str, End]:
    """Return the spread of the rates of three runs in this process."""
    runs = [
        {kind: evaluate_recall(index, queries, true, index.search_size).qps for kind, index in indexes.items()}
        for _ in range(RUNS)
    ]
    ends = {}
    for kind in indexes:
        ends[f"{kind}: queries a second at the default effort"] = reported(median(run[kind] for run in runs))
        rates = [run[kind] for run in runs]
        apart = max(rates) / min(rates) - 1
        ends[f"{kind}: spread of {RUNS} runs"] = at_most(apart, 0.1)
    return ends


def budgets(indexes: dict[str, ApproximateIndex], queries: ndarray, true: ndarray) -> dict[str, End]:
    """Return the recall of shifted queries when an index may score 1 % of the documents."""
    ends = {}
    for kind, index in indexes.items():
        budget, below = 0.01 * len(index.embeddings), (nan, nan)
        for search_size in range(1, 513) if kind.startswith("ivf") else range(10, 513, 6):
            candidates = index.ann_index.find(queries[:100], K, search_size, 1).candidates
            if isnan(candidates) or candidates > budget:
                break
            below = (search_size, candidates)
        if not isnan(below[0]):
            point = evaluate_recall(index, queries, true, int(below[0]), timed=False)
            ends[f"{kind}: recall@10 at {budget:,.0f} candidates, shifted"] = reported(point.recall)
    return ends


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--documents", type=int, default=100_000, help="how many (default: 100000)")
    arguments.add_argument("--skip", nargs="*", default=[], choices=INDEXES, help="indexes to leave out")
    options = arguments.parse_args()
    sampled = control(options.documents, QUERIES)
    order = np.arange(options.documents)
    sets = {}
    for name in ("shifted", "unshifted"):
        queries = getattr(sampled, name)
        sets[name] = queries, top_k(queries, sampled.documents, K, order)[1]
    kinds = [kind for kind in INDEXES if kind not in ("flat", *options.skip)]
    small = sampled.documents[:1_000]
    build_index(small, IndexConfig(index="roargraph"), sampled.training[:500], 0, 1).search(
        sampled.shifted, K
    )  # compiles
    indexes, ends = built(sampled.documents, sampled.training, kinds)
    if "roargraph" in indexes:
        graph = indexes["roargraph"].ann_index.graph  # type: ignore[attr-defined]
        reached = np.zeros(options.documents, np.bool_)
        mark_reachable(graph.neighbors, graph.degrees, graph.entry, reached)
        ends["roargraph: share of documents that can be reached"] = End(reached.mean(), "1", bool(reached.all()))
    ends |= shift_of(indexes, sets) | budgets(indexes, *sets["shifted"])
    with one_thread():
        if {"roargraph", "hnsw"} <= set(indexes):
            ends |= speed(indexes["roargraph"], indexes["hnsw"], sets["shifted"][0])
        ends |= repeats(indexes, *sets["shifted"])
    report(
        f"indexes {options.documents:,} x {sampled.documents.shape[1]}, {QUERIES} queries of either kind",
        ends,
        options.json,
    )


if __name__ == "__main__":
    main()
