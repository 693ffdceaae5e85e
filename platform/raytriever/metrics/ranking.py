"""Ranking metrics and their names: nDCG, MRR, Recall, MAP, Precision, Success, R-precision, Judged and Acc@k.

A name has a metric and its cutoff, `ndcg_at_10`. Without a cutoff, `map`, the whole ranking counts. Names have no `@`,
because the tracking server refuses it. A new metric is a function in this file and a line in `RANKING_METRICS`.

All functions but `accuracy` take the ranks of the judged documents and a cutoff k (None for the whole ranking, if the
metric allows it), and return a value from 0 to 1 for each query.
"""

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


def ndcg(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute nDCG@k with linear gains, as trec_eval and BEIR do (Järvelin & Kekäläinen, 2002).

        DCG@k = Σ_{r = 1..k} gain_r / log2(r + 1),    nDCG@k = DCG@k / DCG@k of the best order of all judged documents

    The gain of a document is its grade at every level of relevance, and 0 for a negative grade and an unjudged
    document. A query without a grade of 1 or more has 0.
    """
    gained = matches.grades > 0
    order = np.lexsort((-matches.grades, matches.queries))
    starts = np.searchsorted(matches.queries, np.arange(len(matches.lengths)))
    ideal = np.empty_like(matches.ranks)
    ideal[order] = np.arange(len(order)) - starts[matches.queries]
    best = gained if cutoff is None else gained & (ideal < cutoff)
    return share(_dcg(matches, matches.ranks, gained & matches.within(cutoff)), _dcg(matches, ideal, best))


def _dcg(matches: JudgedRanks, ranks: np.ndarray, counted: np.ndarray) -> PerQuery:
    return matches.totals(counted, matches.grades / np.log2(ranks + 2.0))


def mrr(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute MRR@k: one over the rank of the first relevant document, and 0 beyond the cutoff (Voorhees, 1999).

        RR@k = 1 / min{r <= k: the document of rank r is relevant}

    `recip_rank` of trec_eval has no cutoff; MRR@10 of MS MARCO and BEIR is this one.
    """
    counted = matches.relevant & matches.within(cutoff)
    first = np.full(len(matches.lengths), np.inf)
    np.minimum.at(first, matches.queries[counted], matches.ranks[counted] + 1.0)
    return 1 / first


def recall(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute Recall@k: the share of a query's relevant documents that are among its k best.

        Recall@k = (relevant documents of rank <= k) / (relevant documents)

    The denominator counts all relevant documents, even if there are more than k. That is `recall_k` of trec_eval, and
    not the capped recall of BEIR. A query without a relevant document has 0.
    """
    return share(matches.totals(matches.relevant & matches.within(cutoff)), matches.relevant_counts)


def average_precision(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute MAP: the mean over a query's relevant documents of the precision at their ranks.

        AP@k = (1 / R) Σ_{relevant documents of rank r <= k} (relevant documents of rank <= r) / r

    R counts all relevant documents, even if there are more than k: `map` and `map_cut_k` of trec_eval (Buckley &
    Voorhees, 2000). A query without a relevant document has 0.
    """
    counted = matches.relevant & matches.within(cutoff)
    queries, ranks = matches.queries[counted], matches.ranks[counted]
    order = np.lexsort((ranks, queries))
    first = np.searchsorted(queries, queries)
    precisions = (np.arange(len(order)) - first + 1) / (ranks[order] + 1.0)
    reached = np.bincount(queries, precisions, len(matches.lengths))
    return share(reached, matches.relevant_counts)


def precision(matches: JudgedRanks, cutoff: int) -> PerQuery:
    """Compute Precision@k: the share of the k best documents that is relevant.

        P@k = (relevant documents of rank <= k) / k

    The denominator is k, even if the ranking has fewer documents: `P_k` of trec_eval.
    """
    return matches.totals(matches.relevant & matches.within(cutoff)) / cutoff


def success(matches: JudgedRanks, cutoff: int) -> PerQuery:
    """Compute Success@k: 1 for a query with a relevant document among its k best, else 0.

        Success@k = [a document of rank <= k is relevant]

    The mean is the share of queries with an answer in the top k: `success_k` of trec_eval. `accuracy` (Acc@k) differs:
    it searches the passages for an answer string and needs no judgements.
    """
    return (matches.totals(matches.relevant & matches.within(cutoff)) > 0).astype(float)


def r_precision(matches: JudgedRanks, cutoff: int | None = None) -> PerQuery:
    """Compute R-precision: the precision at rank R, the number of a query's relevant documents. It has no cutoff.

        R-Prec = (relevant documents of rank <= R) / R

    A query without a relevant document has 0.
    """
    early = matches.ranks < matches.relevant_counts[matches.queries]
    return share(matches.totals(matches.relevant & early), matches.relevant_counts)


def judged(matches: JudgedRanks, cutoff: int) -> PerQuery:
    """Compute Judged@k: the share of the k best documents that have a judgement.

        Judged@k = (judged documents of rank <= k) / (documents of rank <= k)

    Every other metric counts unjudged documents as not relevant. So a model that finds documents that no judge saw
    looks worse than it is. If Judged@k differs between two models, their other metrics do not compare. As in
    ir_measures, the denominator is the number of results if that is below k. A query without results has 0.
    """
    results = np.minimum(matches.lengths, cutoff).astype(np.float64)
    return share(matches.totals(matches.within(cutoff)), results)


def accuracy(hits: Bool[ndarray, "queries depth"], cutoff: int) -> PerQuery:
    """Compute Acc@k: 1 for a query with an answer in one of its k best passages, else 0 (Karpukhin et al., 2020, DPR).

        Acc@k = [one of the k best passages holds an answer string]

    It needs no judgements: any passage with the answer counts.

    Args:
        hits: True if the passage of a rank holds an answer of its query; False without a passage.
        cutoff: k, the number of passages.
    """
    return np.any(hits[:, :cutoff], axis=1).astype(np.float64)


@dataclass(frozen=True)
class RankingMetric:
    """Metric, its name in print, and the use of a cutoff in its name."""

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
    """Return the metric and the cutoff of a name; the cutoff is None for the whole ranking.

    Raises:
        MetricInputError: there is no such metric, or its cutoff is missing or wrong.
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
    """Return a metric's name in print: `nDCG@10`."""
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

    Examples:
        >>> queries, documents, grades = np.array([0, 0, 1]), np.array([4, 7, 5]), np.array([1, 1, 1])
        >>> relevance = rt.metrics.Relevance(queries, documents, grades, query_count=2)
        >>> rt.metrics.measure_ranking(np.array([[4, 5], [7, 5]]), relevance, ["recall_at_2"])
        {'recall_at_2': array([0.5, 1. ])}
    """
    metrics = {name: ranking_metric(name) for name in names}
    matches = relevance.find_ranks(ranking, level)
    return {name: metric.measure(matches, cutoff) for name, (metric, cutoff) in metrics.items()}


def mean(values: PerQuery, relevance: Relevance, level: int = 1) -> float:
    """Return the mean over the queries that have a relevant document; NaN if none has.

    No ranking can improve the value of a query without one. trec_eval counts 0 for such a query if it has judgements.
    Here every metric leaves it out, so all means of a table are over the same queries.
    """
    counted = np.bincount(relevance.queries[relevance.scores >= level], minlength=relevance.query_count) > 0
    return float(values[counted].mean()) if counted.any() else float("nan")
