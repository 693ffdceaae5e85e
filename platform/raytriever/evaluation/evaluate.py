"""Evaluation of a retriever on one split: ranking metrics, and the AUC of its pooled scores.

1. Every query of the split that has a relevant document is searched in the whole corpus. A document with the query's
   own id is left out of its results, but a judgement of it counts, as in BEIR's evaluator.
2. Ranking metrics are means over those queries (`metrics.ranking`). They use the results that the run file holds: 100,
   or as many as a metric needs. A query without results counts 0.
3. AUC compares the scores of all positives with the 500 highest-scoring non-positives of each query, all queries in one
   pool (Optimizing What Matters, section 5.1). So it also measures whether scores of different queries compare.
   Documents that are judged not relevant are non-positives too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.activity import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.evaluation.answers import accuracy_cutoff, accuracy_per_query
from raytriever.evaluation.protocol import AUC, QUERY_AUC, JudgedQueries, Protocol, select_judged_queries
from raytriever.index.exact.search import tie_order, top_k
from raytriever.index.score import pair_scores
from raytriever.metrics.auc import auc_per_query, pooled_auc
from raytriever.metrics.ranking import measure_ranking
from raytriever.metrics.relevance import Relevance

AUC_NEGATIVES = 500

# (positions of queries, number of results) -> scores and documents, best first, -1 for no document.
Search = Callable[[ndarray, int], tuple[ndarray, ndarray]]
# (positions of queries, positions of documents) -> the score of each pair.
Score = Callable[[ndarray, ndarray], ndarray]


@dataclass(frozen=True)
class Evaluation:
    """Results of one system on one split.

    Args:
        queries: positions in the data set, in the order of `per_query` and `ranking`.
        ranking: positions of the best documents, best first, -1 for none.
        scores: scores of the ranking.
        positive_scores, negative_scores: pooled scores.
        positive_queries, negative_queries: index into `queries` of each pooled score.
        per_query: values of each metric that has one per query.
        metrics: means over the queries, and the pooled AUC.
    """

    queries: Int64[ndarray, " queries"]
    ranking: Int64[ndarray, "queries depth"]
    scores: Float32[ndarray, "queries depth"]
    positive_scores: Float32[ndarray, " positives"]
    negative_scores: Float32[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"]
    negative_queries: Int64[ndarray, " negatives"]
    per_query: dict[str, Float64[ndarray, " queries"]]
    metrics: dict[str, float]


@activity("computing the metrics")
def evaluate(
    dataset: RetrievalDataset,
    split: str,
    search: Search,
    score: Score,
    protocol: Protocol | None = None,
    judged: JudgedQueries | None = None,
) -> Evaluation:
    """Search every judged query of a split and measure the results.

    Args:
        dataset: data set, opened with the split.
        split: name of the split.
        search: finds the best documents of queries.
        score: scores pairs.
        protocol: metrics and rules.
        judged: the judged queries of the split by this protocol, if they are selected already.

    Raises:
        DataError: no query of the split has a relevant document, or the protocol needs answers and there are none.
    """
    protocol = protocol or Protocol()
    judged = judged or select_judged_queries(dataset, split, protocol)
    queries, relevance = judged.queries, judged.relevance
    positive = judged.is_relevant & judged.is_in_corpus & ~judged.is_own
    owner, documents = relevance.queries[positive], relevance.documents[positive]
    most = int(np.bincount(owner, minlength=1).max())
    result_count = protocol.kept_of(relevance)
    depth = min(len(dataset.documents), max(result_count, AUC_NEGATIVES + most) + 1)
    scores, ranking = search(queries, depth)
    scores, ranking = _drop_own(scores, ranking, judged.own_documents)

    positives = Relevance(owner, documents, np.ones(len(owner), np.int64), len(queries))
    negative = (positives.gains(ranking) == 0) & (ranking >= 0)
    negative &= np.cumsum(negative, axis=1) <= AUC_NEGATIVES
    pools = (
        score(queries[owner], documents) if len(owner) else np.zeros(0, np.float32),
        scores[negative].astype(np.float32),
        owner,
        np.broadcast_to(np.arange(len(queries))[:, None], negative.shape)[negative],
    )
    # Only the results of the run file are measured, so trec_eval computes the same figures from it.
    per_query = measure_ranking(ranking[:, :result_count], relevance, protocol.ranking_metrics, protocol.level)
    if QUERY_AUC in protocol.metrics:
        per_query[QUERY_AUC] = auc_per_query(pools[0], pools[2], pools[1], pools[3], len(queries))
    cutoffs = [cutoff for name in protocol.metrics if (cutoff := accuracy_cutoff(name))]
    per_query |= accuracy_per_query(dataset, split, queries, ranking, cutoffs)
    # A query whose documents are all relevant has no AUC of its own.
    means = {name: float(np.nanmean(values)) for name, values in per_query.items()}
    if AUC in protocol.metrics:
        means[AUC] = pooled_auc(pools[0], pools[1])
    return Evaluation(
        queries,
        ranking[:, :result_count],
        scores[:, :result_count].astype(np.float32),
        *pools,
        {name: per_query[name] for name in protocol.metrics if name in per_query},
        {name: means[name] for name in protocol.metrics},
    )


def evaluate_embeddings(
    dataset: RetrievalDataset,
    split: str,
    queries: Float32[ndarray, "split_queries width"],
    documents: Float32[ndarray, "documents width"],
    protocol: Protocol | None = None,
) -> Evaluation:
    """Evaluate a dense retriever, given embeddings of `dataset.relevant_queries(split)` and of all documents.

    Raises:
        DataError: as `evaluate`.
    """
    ties = tie_order(dataset.documents.ids)
    row = np.full(len(dataset.queries), -1)
    row[dataset.relevant_queries(split)] = np.arange(len(queries))

    def search(positions: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        return top_k(queries[row[positions]], documents, depth, ties)

    def score(of: ndarray, to: ndarray) -> ndarray:
        return pair_scores(queries, documents, row[of], to)

    return evaluate(dataset, split, search, score, protocol)


def _drop_own(scores: ndarray, ranking: ndarray, own: ndarray) -> tuple[ndarray, ndarray]:
    """Remove each query's own document from its ranking; -1 fills the end."""
    is_own = ranking == own[:, None]
    order = np.argsort(is_own, axis=1, kind="stable")
    scores, ranking = np.take_along_axis(scores, order, 1), np.take_along_axis(ranking, order, 1)
    ranking[is_own.any(1), -1] = -1
    return scores, ranking
