"""Ranking metrics: nDCG, MRR, Recall, MAP, Precision, Success, R-precision, Judged and Acc@k.

A name consists of a metric and its cutoff: `ndcg_at_10`. Without a cutoff (`map`), the whole ranking is used. Names
have no `@`, because MLflow refuses it. A new metric is a function in this file and a line in `RANKING_METRICS`.

Every ranking metric needs only the rank of each judged document. One pass over the rankings finds these ranks: each
result is looked up among the judgements of its query. So ten thousand queries with a thousand results need one pass and
no dictionaries, and a metric is a sum over judgements. The arguments of all metrics except `accuracy` are these ranks
and a cutoff k (None for the whole ranking, if the metric allows it). They return a value from 0 to 1 for each query."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numba
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from numpy import ndarray

from raytriever.core.unknown_names import did_you_mean
from raytriever.metrics.metric_inputs import MetricInputError

Ranking = Int64[ndarray, "queries depth"]
Gains = Float32[ndarray, "queries depth"]
PerQuery = Float64[ndarray, " queries"]

# Rank of a judged document that is not in the ranking. It is beyond every cutoff.
NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Relevance:
    """Judged documents of each query.

    Args:
        queries: index of each judgement's query, int64 `[judgements]`.
        documents: index of each judgement's document, int64 `[judgements]`.
        scores: grade of each judgement, int64 `[judgements]`; a grade above 0 means relevant.
        query_count: number of queries; their indices begin at 0.

    Examples:
        >>> queries, documents, grades = np.array([0, 0, 1]), np.array([4, 7, 5]), np.array([2, 1, 1])
        >>> rt.metrics.Relevance(queries, documents, grades, query_count=2).query_count
        2
    """

    queries: Int64[ndarray, " judgements"]
    documents: Int64[ndarray, " judgements"]
    scores: Int64[ndarray, " judgements"]
    query_count: int

    def find_ranks(self, ranking: Ranking, level: int = 1) -> JudgedRanks:
        """Find the rank of each judged document in the ranking of its query.

        Args:
            ranking: indices of documents, best first, padded with -1.
            level: lowest grade of a relevant document, at least 1. nDCG does not use it.

        Raises:
            MetricInputError: a judgement is repeated or belongs to no query, or the ranking has another
                number of queries, or contains a judged document twice.
        """
        if level < 1:
            raise MetricInputError(f"the relevance level is {level}", "level", "give a grade of at least 1")
        if ranking.ndim != 2 or len(ranking) != self.query_count:
            shape = f"the ranking has the shape {ranking.shape}"
            raise MetricInputError(shape, "ranking", f"give a row for each of the {self.query_count} queries")
        queries, documents, grades = self._ordered
        starts = np.searchsorted(queries, np.arange(self.query_count + 1))
        ranks = np.full(len(queries), NOWHERE)
        lengths = np.zeros(self.query_count, np.int64)
        row = _find_ranks(np.ascontiguousarray(ranking, np.int64), starts, documents, ranks, lengths)
        if row >= 0:
            raise MetricInputError("a document is ranked twice", f"ranking of query {row}", "rank each document once")
        return JudgedRanks(queries, grades, ranks, lengths, level)

    def gains(self, ranking: Ranking) -> Gains:
        """Return the grade of each ranked document; 0 for an unjudged or irrelevant document and for padding.

        Args:
            ranking: indices of documents, best first, padded with -1.
        """
        matches = self.find_ranks(ranking)
        gains = np.zeros(ranking.shape, np.float32)
        ranked = matches.ranks < ranking.shape[1]
        gains[matches.queries[ranked], matches.ranks[ranked]] = np.maximum(matches.grades[ranked], 0)
        return gains

    @cached_property
    def _ordered(self) -> tuple[ndarray, ndarray, ndarray]:
        if len(self.queries) and not 0 <= self.queries.min() <= self.queries.max() < self.query_count:
            raise MetricInputError("a judgement belongs to no query", "judgements", "number the queries from 0")
        order = np.lexsort((self.documents, self.queries))
        queries, documents = self.queries[order], self.documents[order]
        twice = np.flatnonzero((queries[1:] == queries[:-1]) & (documents[1:] == documents[:-1]))
        if len(twice):
            where = f"judgements of query {queries[twice[0]]}"
            raise MetricInputError(f"document {documents[twice[0]]} is judged twice", where, "keep one grade")
        return queries.astype(np.int64), documents.astype(np.int64), self.scores[order].astype(np.int64)


@dataclass(frozen=True)
class JudgedRanks:
    """Ranks (from 0) of the judged documents, sorted by query. A document outside the ranking has the rank `NOWHERE`.

    `lengths` are the lengths of the rankings without padding."""

    queries: Int64[ndarray, " judgements"]
    grades: Int64[ndarray, " judgements"]
    ranks: Int64[ndarray, " judgements"]
    lengths: Int64[ndarray, " queries"]
    level: int

    @cached_property
    def relevant(self) -> Bool[ndarray, " judgements"]:
        """True for judgements with a grade of at least `level`."""
        return self.grades >= self.level

    @cached_property
    def relevant_counts(self) -> PerQuery:
        """Number of relevant documents of each query, inside or outside the ranking."""
        return self.totals(self.relevant)

    def within(self, cutoff: int | None) -> Bool[ndarray, " judgements"]:
        """Return True for documents among the `cutoff` best. Without a cutoff, return True for all ranked documents."""
        return self.ranks < (NOWHERE if cutoff is None else cutoff)

    def totals(self, chosen: Bool[ndarray, " judgements"], worth: ndarray | None = None) -> PerQuery:
        """Return the number of chosen judgements of each query, or, with `worth`, the sum of their values in it."""
        weights = None if worth is None else worth[chosen]
        return np.bincount(self.queries[chosen], weights, len(self.lengths)).astype(np.float64)


def fraction(numerator: PerQuery, denominator: PerQuery) -> PerQuery:
    """Return `numerator / denominator`, or 0 if the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=denominator > 0)


@numba.njit(cache=True)
def _find_ranks(ranking, starts, documents, ranks, lengths):  # type: ignore[no-untyped-def]
    """Fill `ranks` and `lengths`. Return the first query whose ranking has a judged document twice, or -1."""
    for query in range(ranking.shape[0]):
        begin, end = starts[query], starts[query + 1]
        for rank in range(ranking.shape[1]):
            document = ranking[query, rank]
            if document < 0:
                continue
            lengths[query] += 1
            low, high = begin, end
            while low < high:
                middle = (low + high) >> 1
                if documents[middle] < document:
                    low = middle + 1
                else:
                    high = middle
            if low < end and documents[low] == document:
                if ranks[low] != NOWHERE:
                    return query
                ranks[low] = rank
    return -1


def ndcg(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute nDCG@k with linear gains, as trec_eval and BEIR do (Järvelin & Kekäläinen, 2002).

        DCG@k = Σ_{r = 1..k} gain_r / log2(r + 1),    nDCG@k = DCG@k / DCG@k of the best order of all judged documents

    The gain of a document is its grade, whatever the relevance level is. The gain of a negative grade and of an
    unjudged document is 0. A query without a grade above 0 has nDCG 0."""
    gained = matches.grades > 0
    order = np.lexsort((-matches.grades, matches.queries))
    starts = np.searchsorted(matches.queries, np.arange(len(matches.lengths)))
    ideal = np.empty_like(matches.ranks)
    ideal[order] = np.arange(len(order)) - starts[matches.queries]
    best = gained if cutoff is None else gained & (ideal < cutoff)
    return fraction(_dcg(matches, matches.ranks, gained & matches.within(cutoff)), _dcg(matches, ideal, best))


def _dcg(matches: JudgedRanks, ranks: np.ndarray, counted: np.ndarray) -> PerQuery:
    return matches.totals(counted, matches.grades / np.log2(ranks + 2.0))


def mrr(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute MRR@k: 1 / rank of the first relevant document, or 0 if it is beyond the cutoff (Voorhees, 1999).

        RR@k = 1 / min{r <= k: the document of rank r is relevant}

    MRR@10 of MS MARCO and BEIR is this metric. `recip_rank` of trec_eval is the same without a cutoff."""
    counted = matches.relevant & matches.within(cutoff)
    first = np.full(len(matches.lengths), np.inf)
    np.minimum.at(first, matches.queries[counted], matches.ranks[counted] + 1.0)
    return 1 / first


def recall(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute Recall@k: the fraction of a query's relevant documents that are among its k best.

        Recall@k = (relevant documents of rank <= k) / (relevant documents)

    The denominator is the number of all relevant documents, even if it is more than k. This is `recall_k` of trec_eval,
    not the capped recall of BEIR. A query without a relevant document has 0."""
    return fraction(matches.totals(matches.relevant & matches.within(cutoff)), matches.relevant_counts)


def average_precision(matches: JudgedRanks, cutoff: int | None) -> PerQuery:
    """Compute MAP: the mean over a query's relevant documents of the precision at their ranks.

        AP@k = (1 / R) Σ_{relevant documents of rank r <= k} (relevant documents of rank <= r) / r

    R is the number of all relevant documents, even if it is more than k, as in `map` and `map_cut_k` of trec_eval
    (Buckley & Voorhees, 2000). A query without a relevant document has 0."""
    counted = matches.relevant & matches.within(cutoff)
    queries, ranks = matches.queries[counted], matches.ranks[counted]
    order = np.lexsort((ranks, queries))
    first = np.searchsorted(queries, queries)
    precisions = (np.arange(len(order)) - first + 1) / (ranks[order] + 1.0)
    reached = np.bincount(queries, precisions, len(matches.lengths))
    return fraction(reached, matches.relevant_counts)


def precision(matches: JudgedRanks, cutoff: int) -> PerQuery:
    """Compute Precision@k: the fraction of the k best documents that is relevant.

        P@k = (relevant documents of rank <= k) / k

    The denominator is k, even if the ranking has fewer documents, as in `P_k` of trec_eval."""
    return matches.totals(matches.relevant & matches.within(cutoff)) / cutoff


def success(matches: JudgedRanks, cutoff: int) -> PerQuery:
    """Compute Success@k: 1 for a query with a relevant document among its k best, else 0.

        Success@k = [a document of rank <= k is relevant]

    The mean is the fraction of queries with a relevant document in the top k, as in `success_k` of trec_eval.
    `accuracy` (Acc@k) differs: it searches the passages for an answer string, and needs no judgements."""
    return (matches.totals(matches.relevant & matches.within(cutoff)) > 0).astype(float)


def r_precision(matches: JudgedRanks, cutoff: int | None = None) -> PerQuery:
    """Compute R-precision: the precision at rank R, with R the query's number of relevant documents (no cutoff).

        R-Prec = (relevant documents of rank <= R) / R

    A query without a relevant document has 0."""
    early = matches.ranks < matches.relevant_counts[matches.queries]
    return fraction(matches.totals(matches.relevant & early), matches.relevant_counts)


def judged(matches: JudgedRanks, cutoff: int) -> PerQuery:
    """Compute Judged@k: the fraction of the k best documents that have a judgement.

        Judged@k = (judged documents of rank <= k) / (documents of rank <= k)

    All other metrics treat unjudged documents as not relevant. So a model that finds unjudged documents looks worse
    than it is. If Judged@k differs between two models, their other metrics are not comparable. As in ir_measures, the
    denominator is the number of results if it is less than k. A query without results has 0."""
    results = np.minimum(matches.lengths, cutoff).astype(np.float64)
    return fraction(matches.totals(matches.within(cutoff)), results)


def accuracy(hits: Bool[ndarray, "queries depth"], cutoff: int) -> PerQuery:
    """Compute Acc@k: 1 for a query with an answer in one of its k best passages, else 0 (Karpukhin et al., 2020, DPR).

        Acc@k = [one of the k best passages holds an answer string]

    It needs no judgements: any passage with an answer string is accepted.

    Args:
        hits: True if the passage at a rank contains an answer of its query; False if there is no passage.
    """
    return np.any(hits[:, :cutoff], axis=1).astype(np.float64)


@dataclass(frozen=True)
class RankingMetric:
    """Metric, its printed name, and whether its name has a cutoff."""

    compute: Callable[[JudgedRanks, Any], PerQuery]
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
    """Return the metric and the cutoff of a name. The cutoff is None for the whole ranking.

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
    """Return the printed name of a metric, such as `nDCG@10`."""
    metric, cutoff = ranking_metric(name)
    return metric.title if cutoff is None else f"{metric.title}@{cutoff}"


def evaluate_ranking(
    ranking: Ranking, relevance: Relevance, names: Iterable[str] = DEFAULT_METRICS, level: int = 1
) -> dict[str, PerQuery]:
    """Compute ranking metrics of each query.

    Args:
        ranking: indices of documents, best first, padded with -1, int64 `[queries, depth]`.
        relevance: the judgements.
        names: `ndcg`, `mrr`, `recall`, `map`, `precision`, `success`, `r_precision` or `judged`, most with a cutoff
            such as `ndcg_at_10`. Without a cutoff, the whole ranking is used.
        level: lowest grade of a relevant document, at least 1. nDCG uses the grades themselves.

    Returns:
        float64 `[queries]` by name, 0 to 1. A query without results or without a relevant document has 0.

    Raises:
        MetricInputError: a metric is unknown, or the ranking or the judgements are inconsistent.

    Examples:
        >>> queries, documents, grades = np.array([0, 0, 1]), np.array([4, 7, 5]), np.array([1, 1, 1])
        >>> relevance = rt.metrics.Relevance(queries, documents, grades, query_count=2)
        >>> rt.metrics.evaluate_ranking(np.array([[4, 5], [7, 5]]), relevance, ["recall_at_2"])
        {'recall_at_2': array([0.5, 1. ])}
    """
    metrics = {name: ranking_metric(name) for name in names}
    matches = relevance.find_ranks(ranking, level)
    return {name: metric.compute(matches, cutoff) for name, (metric, cutoff) in metrics.items()}
