"""Query-document gap: distances of queries from documents, and the work of indexes for both.

    python studies/gap.py DATA MODEL ... --output DIR [--indexes hnsw,roargraph] [--split test]

For each model DIR/NAME.json has the results, and the command prints tables. Passages are held out of the corpus and
searched like queries; RoarGraph is built from the queries of the split `train`.

    MMD^2(Q, Y)      = |mean q - mean y|^2        (out-of-distribution paper, Eq. 2)
    MMD^2({q}, Y)    = |q - mean y|^2             (scores of single queries, Figure 1 of that paper)

Both are the squared maximum mean discrepancy of a linear kernel. Without a gap an index scores as many candidates for
queries as for held-out passages, at the same recall (out-of-distribution paper, section 2)."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from math import isnan, nan
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

import raytriever as rt
from raytriever.core.errors import DataError
from raytriever.core.store.commit import write_atomically
from raytriever.core.terminal import text_table
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.evaluation.evaluated_datasets import distinct_names
from raytriever.evaluation.results import without_nan
from raytriever.retrieval.index.approximate.build_index import build_index
from raytriever.retrieval.index.approximate.index_recall import OperatingPoint, evaluate_recall, format_count
from raytriever.retrieval.index.approximate.index_settings import INDEXES, IndexConfig
from raytriever.retrieval.index.exact_top_k import top_k
from search_size import ann_index_bytes, at_recall, search_sizes

RECALL, K = 0.95, 10  # candidates are compared at this recall@K
BUDGETS = (0.01, 0.02, 0.05)  # fractions of the documents that an index may score for a query
QUERIES = 1_000  # most queries, and held-out passages
# Settings of a curve: numbers of lists that are probed, and beam widths of a graph search.
LISTS, BEAMS = (1, 2, 4, 8, 16, 32, 64), (10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320)
# Ratios of candidates with HNSW: there is no gap up to the first, and a gap from the second on.
NO_GAP, CLEAR_GAP = 1.1, 1.5


@dataclass(frozen=True)
class GapEmbeddings:
    """Embeddings of a gap. Passages held out are searched like queries; RoarGraph is built from training queries."""

    documents: Float32[ndarray, "documents dim"]
    held_out: Float32[ndarray, "passages dim"]
    queries: Float32[ndarray, "queries dim"]
    training: Float32[ndarray, "training dim"]


@dataclass(frozen=True)
class Gap:
    """MMD^2 from the documents: of all queries, of all held-out passages, and as scores of each of them."""

    queries: float
    held_out: float
    query_scores: Float64[ndarray, " queries"]
    held_out_scores: Float64[ndarray, " passages"]

    @property
    def beyond(self) -> float:
        """Fraction of pairs of a query and a held-out passage in which the query has the higher score, 0 to 1.

        A tie counts one half. 0.5 means that the scores do not separate queries from passages."""
        ordered = np.sort(self.held_out_scores)
        below = np.searchsorted(ordered, self.query_scores, "left") + np.searchsorted(
            ordered, self.query_scores, "right"
        )
        return float(below.mean() / 2 / len(ordered))


def evaluate_gap(
    documents: Float32[ndarray, "documents dim"],
    queries: Float32[ndarray, "queries dim"],
    held_out: Float32[ndarray, "passages dim"],
) -> Gap:
    """Return the distances of queries and held-out passages from the documents; each has at least one row."""
    center = documents.mean(0, dtype=np.float64)

    def distances(vectors: ndarray) -> tuple[float, ndarray]:
        return float(np.square(vectors.mean(0, dtype=np.float64) - center).sum()), np.square(vectors - center).sum(1)

    (of_queries, scores), (of_passages, passage_scores) = distances(queries), distances(held_out)
    return Gap(of_queries, of_passages, scores, passage_scores)


def query_positive_distance(
    queries: Float32[ndarray, "queries dim"],
    documents: Float32[ndarray, "documents dim"],
    of: Int64[ndarray, " pairs"],
    to: Int64[ndarray, " pairs"],
) -> float:
    """Return the mean Euclidean distance of queries and their positives, of rows `of` and `to`, as training logs it."""
    return float(np.linalg.norm(queries[of].astype(np.float64) - documents[to], axis=1).mean())


@dataclass(frozen=True)
class IndexCurve:
    """Cost and recall of one index.

    Args:
        build_seconds: seconds to build the index on all cores.
        bytes: size of the index without the embeddings.
        curve: operating points for the queries.
        queries, held_out: operating points at the same recall@10. This recall is 0.95, or the recall of the least
            search size if that is higher for either. Candidates are NaN if the library does not count them or the
            recall is not reached.
    """

    build_seconds: float
    bytes: int
    curve: list[OperatingPoint]
    queries: OperatingPoint
    held_out: OperatingPoint

    @property
    def ratio(self) -> float:
        """Candidates for queries divided by those for held-out passages; if not counted, the ratio of search sizes."""
        if np.isnan(self.queries.candidates) and self.queries.search_size and self.held_out.search_size:
            return self.queries.search_size / self.held_out.search_size
        return self.queries.candidates / self.held_out.candidates


def hold_out(
    embeddings: Float32[ndarray, "documents dim"], count: int, seed: int
) -> tuple[Int64[ndarray, " kept"], Int64[ndarray, " passages"]]:
    """Plot passages that are searched like queries; return the rows of the others, and theirs, both ascending."""
    if 2 * count > len(embeddings):
        raise DataError(f"{len(embeddings):,} passages are too few to hold out {count:,} of them")
    positions = np.sort(np.random.default_rng(seed).choice(len(embeddings), count, replace=False))
    return np.setdiff1d(np.arange(len(embeddings)), positions), positions


def evaluate_index(data: GapEmbeddings, config: IndexConfig, seed: int) -> IndexCurve:
    """Build one index and measure it."""
    began = perf_counter()
    index = build_index(data.documents, config, data.training, seed, torch.get_num_threads())
    seconds = perf_counter() - began
    true = _exact_neighbors(data, data.queries)
    curve = [evaluate_recall(index, data.queries, true, search_size) for search_size in _search_sizes_of_curve(config)]
    if config.index == "flat":
        exact = OperatingPoint(1, 1.0, float(len(data.documents)), nan)
        return IndexCurve(
            build_seconds=seconds, bytes=ann_index_bytes(index.ann_index), curve=curve, queries=exact, held_out=exact
        )
    sets = [(queries, _exact_neighbors(data, queries)) for queries in (data.queries, data.held_out)]
    # The smallest search size may already exceed 0.95 for one of the sets; candidates are compared at one recall.
    least = next(search_sizes(index, K))
    target = max(RECALL, *(evaluate_recall(index, *pair, least, timed=False).recall for pair in sets))
    at_queries, at_passages = (at_recall(index, *pair, target) for pair in sets)
    return IndexCurve(
        build_seconds=seconds,
        bytes=ann_index_bytes(index.ann_index),
        curve=curve,
        queries=at_queries,
        held_out=at_passages,
    )


def _exact_neighbors(data: GapEmbeddings, queries: ndarray) -> Int64[ndarray, "queries k"]:
    return top_k(queries, data.documents, K, np.arange(len(data.documents)))[1]


def _search_sizes_of_curve(config: IndexConfig) -> list[int]:
    if config.index == "flat":
        return [1]
    return list(LISTS if config.index in ("ivf", "ivfpq") else BEAMS)


def describe_gap(indexes: dict[str, IndexCurve]) -> str:
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


def recall_within(points: list[OperatingPoint], budget: float) -> float:
    """Return the highest recall of settings that score at most `budget` candidates.

    NaN if no setting scores so few, or if candidates are not counted."""
    return max((point.recall for point in points if point.candidates <= budget), default=nan)


def format_tables(indexes: dict[str, IndexCurve], gap: Gap, distance: float, documents: int) -> str:
    """Return the tables of costs, recalls and candidates of the indexes, and the distances."""
    costs = [
        [kind, f"{index.build_seconds:,.1f}", f"{index.bytes / 1e6:,.1f}"]
        + [_text(recall_within(index.curve, fraction * documents), 3) for fraction in BUDGETS]
        for kind, index in indexes.items()
    ]
    shifts = [
        [
            kind,
            _text(index.queries.recall, 3),
            format_count(index.held_out.candidates),
            format_count(index.queries.candidates),
            _text(index.ratio, 2),
        ]
        for kind, index in indexes.items()
        if kind != "flat"
    ]
    heads = [f"recall@{K}, {fraction:.0%} scored" for fraction in BUDGETS]
    candidates = [f"candidates at recall@{K} of", "", "held-out passages", "queries", "queries / passages"]
    return "\n\n".join(
        [
            text_table([["index", "build s", "MB without embeddings", *heads], *costs], left=0),
            text_table([candidates, *shifts], left=0),
            f"MMD² of queries {gap.queries:.4f}, of held-out passages {gap.held_out:.4f}; a query's score is above a "
            f"passage's in {gap.beyond:.1%} of pairs",
            describe_gap(indexes),
            f"mean distance of a query and its positives {distance:.4f}",
        ]
    )


def to_json(indexes: dict[str, IndexCurve], gap: Gap, distance: float, documents: int) -> dict[str, Any]:
    """Return all results with null in place of NaN."""
    results: dict[str, Any] = without_nan(
        {
            "documents": documents,
            "indexes": {kind: asdict(index) | {"ratio": index.ratio} for kind, index in indexes.items()},
            "mmd2": {"queries": gap.queries, "held_out": gap.held_out},
            "beyond": gap.beyond,
            "query_positive_distance": distance,
            "verdict": describe_gap(indexes),
        }
    )
    return results


def _text(value: float, decimals: int) -> str:
    return "-" if isnan(value) else f"{value:.{decimals}f}"


def embed(model: str, path: str, split: str, seed: int = 0) -> tuple[GapEmbeddings, float]:
    """Encode a data set; return its embeddings, and the mean distance of queries and their positives."""
    encoder, dataset = rt.load_model(model, precision="fp32"), open_dataset(path, ["train", split])
    embeddings, positives = encoder.encode_passages(dataset.passages()), dataset.positives(split)
    texts = dataset.queries.texts
    count = min(QUERIES, len(positives), len(embeddings) // 10)
    chosen = np.sort(np.random.default_rng(seed).choice(len(positives), count, replace=False))
    queries = encoder.encode_queries([texts[int(row)] for row in positives.queries[chosen]])
    training = encoder.encode_queries([texts[int(row)] for row in dataset.positives("train").queries])
    of = np.repeat(np.arange(count), [len(positives.of(int(row))) for row in chosen])
    to = np.concatenate([positives.of(int(row)) for row in chosen])
    remaining, held_out = hold_out(embeddings, count, seed)
    data = GapEmbeddings(embeddings[remaining], embeddings[held_out], queries, training)
    return data, query_positive_distance(queries, embeddings, of, to)


def main() -> None:
    """Measure the gap of each model, print it and write it."""
    parser = argparse.ArgumentParser(description="Measure the gap between queries and passages, and its cost.")
    parser.add_argument("data", metavar="DATA", help="data set with the splits `train` and --split")
    parser.add_argument("models", metavar="MODEL", nargs="+", help="encoders: names or directories")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write the results to")
    kinds = [kind for kind in INDEXES if kind != "vamana"]
    parser.add_argument(
        "--indexes", default=",".join(kinds), metavar="A,B", help="kinds of index (default: %(default)s)"
    )
    parser.add_argument("--split", default="test", help="split whose queries are searched (default: test)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for model, name in zip(arguments.models, distinct_names(arguments.models), strict=True):
        data, distance = embed(model, arguments.data, arguments.split)
        indexes = {kind: evaluate_index(data, IndexConfig(index=kind), 0) for kind in arguments.indexes.split(",")}
        gap = evaluate_gap(data.documents, data.queries, data.held_out)
        print(f"{name}\n{format_tables(indexes, gap, distance, len(data.documents))}\n", flush=True)
        content = json.dumps(to_json(indexes, gap, distance, len(data.documents)), indent=1, allow_nan=False)
        write_atomically(arguments.output / f"{name}.json", content + "\n")


if __name__ == "__main__":
    main()
