"""Ranking metrics and their names: nDCG, MRR, Recall, MAP, Precision, Success, R-precision, Judged and Acc@k.

A name is that of a metric and its cutoff, `ndcg_at_10`; without a cutoff, `map`, the whole ranking counts. Names hold
no `@`, because the tracking server refuses it. A new metric is a function here and a line in `RANKING_METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.relevance import JudgedRanks, PerQuery, Ranking, Relevance, share
from raytriever.options import did_you_mean


def ndcg(placed: JudgedRanks, cutoff: int | None) -> PerQuery:
    """nDCG among the `cutoff` best (all for None), 0 to 1; 0 without a document of grade 1 or more."""
    gained = placed.grades > 0
    order = np.lexsort((-placed.grades, placed.queries))
    starts = np.searchsorted(placed.queries, np.arange(len(placed.lengths)))
    ideal = np.empty_like(placed.ranks)
    ideal[order] = np.arange(len(order)) - starts[placed.queries]
    best = gained if cutoff is None else gained & (ideal < cutoff)
    return share(_dcg(placed, placed.ranks, gained & placed.within(cutoff)), _dcg(placed, ideal, best))


def _dcg(placed: JudgedRanks, ranks: np.ndarray, counted: np.ndarray) -> PerQuery:
    return placed.totals(counted, placed.grades / np.log2(ranks + 2.0))


def mrr(placed: JudgedRanks, cutoff: int | None) -> PerQuery:
    """The reciprocal rank of the first relevant document among the `cutoff` best (all for None), 0 to 1."""
    found = placed.relevant & placed.within(cutoff)
    first = np.full(len(placed.lengths), np.inf)
    np.minimum.at(first, placed.queries[found], placed.ranks[found] + 1.0)
    return 1 / first


def recall(placed: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Relevant documents among the `cutoff` best (all for None) over all relevant ones, 0 to 1; 0 without any."""
    return share(placed.totals(placed.relevant & placed.within(cutoff)), placed.relevant_counts)


def average_precision(placed: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Average precision among the `cutoff` best (all for None), 0 to 1; 0 without a relevant document."""
    found = placed.relevant & placed.within(cutoff)
    queries, ranks = placed.queries[found], placed.ranks[found]
    order = np.lexsort((ranks, queries))
    first = np.searchsorted(queries, queries)
    precisions = (np.arange(len(order)) - first + 1) / (ranks[order] + 1.0)
    reached = np.bincount(queries, precisions, len(placed.lengths))
    return share(reached, placed.relevant_counts)


def precision(placed: JudgedRanks, cutoff: int) -> PerQuery:
    """Relevant documents among the `cutoff` best over `cutoff`, 0 to 1."""
    return placed.totals(placed.relevant & placed.within(cutoff)) / cutoff


def success(placed: JudgedRanks, cutoff: int) -> PerQuery:
    """Return 1 for a query with a relevant document among its `cutoff` best, else 0."""
    return (placed.totals(placed.relevant & placed.within(cutoff)) > 0).astype(float)


def r_precision(placed: JudgedRanks, cutoff: int | None = None) -> PerQuery:
    """The share of the R best that is relevant, 0 to 1; 0 without a relevant document. There is no cutoff to give."""
    early = placed.ranks < placed.relevant_counts[placed.queries]
    return share(placed.totals(placed.relevant & early), placed.relevant_counts)


def judged(placed: JudgedRanks, cutoff: int) -> PerQuery:
    """Judged documents among the `cutoff` best, 0 to 1; 0 without results."""
    found = np.minimum(placed.lengths, cutoff).astype(np.float64)
    return share(placed.totals(placed.within(cutoff)), found)


def accuracy(hits: Bool[ndarray, "queries depth"], cutoff: int) -> PerQuery:
    """1 where one of the `cutoff` best holds the answer, else 0.

    Args:
        hits: whether the passage of each rank holds an answer of its query; False where there is no passage.
        cutoff: how many passages are looked at.
    """
    return np.any(hits[:, :cutoff], axis=1).astype(np.float64)


@dataclass(frozen=True)
class RankingMetric:
    """A metric, its name in print, and whether its name has a cutoff."""

    measure: Callable[[JudgedRanks, Any], PerQuery]
    title: str
    cutoff: Literal["always", "maybe", "never"]


RANKING_METRICS = {
    "ndcg": RankingMetric(ndcg, "nDCG", "maybe"),
    "mrr": RankingMetric(mrr, "MRR", "maybe"),
    "recall": RankingMetric(recall, "Recall", "maybe"),
    "map": RankingMetric(average_precision, "MAP", "maybe"),
    "precision": RankingMetric(precision, "P", "always"),
    "success": RankingMetric(success, "Success", "always"),
    "r_precision": RankingMetric(r_precision, "R-Prec", "never"),
    "judged": RankingMetric(judged, "Judged", "always"),
}
DEFAULT_METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")


def ranking_metric(name: str) -> tuple[RankingMetric, int | None]:
    """The metric and the cutoff that a name means.

    Raises:
        MetricInputError: there is no such metric, or it wants a cutoff, or another one.
    """
    family, _, cutoff = name.partition("_at_")
    metric = RANKING_METRICS.get(family)
    if metric is None:
        raise MetricInputError(f"unknown metric {name!r}", "metrics", did_you_mean(family, RANKING_METRICS))
    if "_at_" not in name and metric.cutoff != "always":
        return metric, None
    if metric.cutoff != "never" and cutoff.isascii() and cutoff.isdecimal() and int(cutoff) > 0:
        return metric, int(cutoff)
    right = family if metric.cutoff == "never" else f"{family}_at_10"
    raise MetricInputError(f"metric {name!r} has no such cutoff", "metrics", f"write it as {right!r}")


def title(name: str) -> str:
    """A metric's name in print: `nDCG@10`."""
    metric, cutoff = ranking_metric(name)
    return metric.title if cutoff is None else f"{metric.title}@{cutoff}"


def measure_ranking(
    ranking: Ranking, relevance: Relevance, names: Iterable[str] = DEFAULT_METRICS, level: int = 1
) -> dict[str, PerQuery]:
    """Compute ranking metrics of each query.

    Args:
        ranking: document positions, best first, padded with -1, int64 `[queries, depth]`.
        relevance: the judgements.
        names: `ndcg`, `mrr`, `recall`, `map`, `precision`, `success`, `r_precision` or `judged`, most with a cutoff
            such as `ndcg_at_10`; without one the whole ranking counts.
        level: lowest grade of a relevant document, at least 1; nDCG uses the grades themselves.

    Returns:
        float64 `[queries]` by name, 0 to 1. A query without results or without a relevant document has 0.

    Raises:
        MetricInputError: a metric is unknown, or the ranking or the judgements are inconsistent.

    Example:
        >>> queries, documents, grades = np.array([0, 0, 1]), np.array([4, 7, 5]), np.array([1, 1, 1])
        >>> relevance = rt.metrics.Relevance(queries, documents, grades, query_count=2)
        >>> rt.metrics.measure_ranking(np.array([[4, 5], [7, 5]]), relevance, ["recall_at_2"])
        {'recall_at_2': array([0.5, 1. ])}
    """
    metrics = {name: ranking_metric(name) for name in names}
    placed = relevance.find_ranks(ranking, level)
    return {name: metric.measure(placed, cutoff) for name, (metric, cutoff) in metrics.items()}


def mean(values: PerQuery, relevance: Relevance, level: int = 1) -> float:
    """The mean over the queries that have a relevant document; NaN if none has.

    No ranking can do anything for a query without one. trec_eval counts such a query 0 where the judgements name it;
    here it is left out of the mean of every metric, so that all means of a table are over the same queries.
    """
    counted = np.bincount(relevance.queries[relevance.scores >= level], minlength=relevance.query_count) > 0
    return float(values[counted].mean()) if counted.any() else float("nan")
