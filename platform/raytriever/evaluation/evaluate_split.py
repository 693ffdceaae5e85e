"""Evaluation of a retriever on one split: ranking metrics, and the AUC of the pooled scores.

1. The whole corpus is searched for every query of the split that has a relevant document. A document with the query's
   own id is left out of the results, but not out of the judgements, as in BEIR's evaluator.
2. Ranking metrics are means over those queries (`metrics.ranking_metrics`). They use only the results in the run file:
   100 per query, or as many as a metric needs. A query without results has the value 0.
3. AUC compares the scores of all positives with the 500 highest-scoring non-positives of each query. All queries are in
   one pool (Optimizing What Matters, section 5.1). So AUC also shows whether scores of different queries compare well.
   Documents judged not relevant are non-positives too. A positive without a score ranks below the whole pool."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.core.progress import activity
from raytriever.data.dataset import RetrievalDataset
from raytriever.data.hashed_ids import normalize
from raytriever.evaluation.protocol import (
    ACCURACY,
    AUC,
    QUERY_AUC,
    REMOVED,
    JudgedQueries,
    Protocol,
    accuracy_cutoff,
    check_answers,
    select_judged_queries,
)
from raytriever.metrics.answer_confidence import DEPTH
from raytriever.metrics.auc import auc_per_query, pooled_auc
from raytriever.metrics.ranking_metrics import PerQuery, Relevance, accuracy, evaluate_ranking
from raytriever.retrieval.mining.filters import contains_answer

AUC_NEGATIVES = 500


@dataclass(frozen=True)
class UnansweredRanking:
    """Documents ranked for queries that no document of the corpus answers, best first; -1 means no document."""

    queries: Int64[ndarray, " queries"]
    ranking: Int64[ndarray, "queries depth"]
    scores: Float32[ndarray, "queries depth"]


class System(Interface):
    """Retrieval system on one data set, such as an encoder or BM25. Queries and documents are given by position."""

    def search(self, queries: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        """Return the scores and documents of each query's best results, best first, padded with -1."""

    def score(self, queries: ndarray, documents: ndarray) -> ndarray:
        """Return the score of each pair of a query and a document, NaN if the system has none."""


class PreparedSystem(System, Interface):
    """System that does slow work before its search, so that the time of the search excludes it."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that the scores depend on, except the documents. A threshold is valid for one digest only."""

    def prepare(self) -> None:
        """Do the work that only the first search needs, such as encoding or indexing the documents."""


@dataclass(frozen=True)
class Evaluation:
    """Results of one system on one split.

    `queries` are positions in the data set; `per_query` and `ranking` have the same order. `per_query` has each metric
    with values by query. `ranking` has positions of the best documents, best first, padded with -1. Pooled scores have
    the index of their query in `queries`. `unanswered` are rankings of queries without an answer, by kind; kind
    `removed` has all `queries`, ranked without relevant documents and copies. `notes` say what the system lacks."""

    queries: Int64[ndarray, " queries"]
    ranking: Int64[ndarray, "queries depth"]
    scores: Float32[ndarray, "queries depth"]
    positive_scores: Float32[ndarray, " positives"]
    negative_scores: Float32[ndarray, " negatives"]
    positive_queries: Int64[ndarray, " positives"]
    negative_queries: Int64[ndarray, " negatives"]
    per_query: dict[str, Float64[ndarray, " queries"]]
    metrics: dict[str, float]
    unanswered: dict[str, UnansweredRanking] = field(default_factory=dict)
    search_seconds: float = 0.0
    notes: Sequence[str] = ()


@activity("computing the metrics")
def evaluate(
    dataset: RetrievalDataset,
    split: str,
    system: System,
    protocol: Protocol | None = None,
    judged: JudgedQueries | None = None,
) -> Evaluation:
    """Search every judged query of a split and compute the metrics. All evaluations of the package call this function.

    `judged` are the judged queries of the split under this protocol; by default they are selected here."""
    protocol = protocol or Protocol()
    judged = judged or select_judged_queries(dataset, split, protocol)
    queries, relevance = judged.queries, judged.relevance
    positive = judged.is_relevant & judged.is_in_corpus & ~judged.is_own
    owner, documents = relevance.queries[positive], relevance.documents[positive]
    most = int(np.bincount(owner, minlength=1).max())
    result_count = protocol.kept_of(relevance)
    depth = min(len(dataset.documents), max(result_count, AUC_NEGATIVES + most) + 1)
    began = time.monotonic()
    scores, ranking = system.search(queries, depth)
    search_seconds = time.monotonic() - began
    scores, ranking = _drop_own(scores, ranking, judged.own_documents)

    positives = Relevance(owner, documents, np.ones(len(owner), np.int64), len(queries))
    negative = (positives.gains(ranking) == 0) & (ranking >= 0)
    negative &= np.cumsum(negative, axis=1) <= AUC_NEGATIVES
    positive_scores, notes = _below_all(
        system.score(queries[owner], documents) if len(owner) else np.zeros(0, np.float32), scores[negative]
    )
    pools = (
        positive_scores,
        scores[negative].astype(np.float32),
        owner,
        np.broadcast_to(np.arange(len(queries))[:, None], negative.shape)[negative],
    )
    # Use only the results that the run file holds, so that trec_eval computes the same values from it.
    per_query = evaluate_ranking(ranking[:, :result_count], relevance, protocol.ranking_metrics, protocol.level)
    if QUERY_AUC in protocol.metrics:
        per_query[QUERY_AUC] = auc_per_query(pools[0], pools[2], pools[1], pools[3], len(queries))
    if protocol.wants_answers:
        cutoffs = [cutoff for name in protocol.metrics if (cutoff := accuracy_cutoff(name))]
        per_query |= _accuracy_per_query(dataset, split, queries, ranking, cutoffs)
    # A query whose documents are all relevant has no AUC: its value is NaN.
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
        {
            REMOVED: _without_answers(judged, positives, scores, ranking),
            **{
                kind: UnansweredRanking(some, *_ranked(*system.search(some, min(len(dataset.documents), DEPTH))))
                for kind, some in judged.unanswerable.items()
                if len(some)
            },
        },
        search_seconds,
        notes,
    )


def _below_all(positives: ndarray, negatives: ndarray) -> tuple[Float32[ndarray, " positives"], list[str]]:
    """Return the scores of positives; a missing score becomes the lowest. Also return a sentence about missing ones."""
    missing = np.isnan(positives)
    if not missing.any():
        return positives, []
    known = np.concatenate([positives[~missing], negatives]).astype(np.float32)
    lowest = np.nextafter(known.min(), np.float32(-np.inf)) if len(known) else np.float32(0)
    fraction = f"{missing.sum():,} of {len(positives):,} relevant passages"
    return np.where(missing, lowest, positives), [f"{fraction} have no score; for the AUC, they rank below all others"]


def _without_answers(
    judged: JudgedQueries, positives: Relevance, scores: ndarray, ranking: ndarray
) -> UnansweredRanking:
    copies, size = judged.dataset.documents.copies, len(judged.dataset.documents)
    rows = np.arange(len(ranking))[:, None] * size
    answers = positives.queries * size + copies.first(positives.documents)
    is_answer = np.isin(rows + copies.first(ranking), answers) & (ranking >= 0)
    order = np.argsort(is_answer, axis=1, kind="stable")[:, :DEPTH]
    kept = np.where(np.take_along_axis(is_answer, order, 1), -1, np.take_along_axis(ranking, order, 1))
    return UnansweredRanking(judged.queries, *_ranked(np.take_along_axis(scores, order, 1), kept))


def _ranked(scores: ndarray, ranking: ndarray) -> tuple[ndarray, ndarray]:
    return ranking, np.where(ranking >= 0, scores, np.nan).astype(np.float32)


def _accuracy_per_query(
    dataset: RetrievalDataset, split: str, queries: ndarray, ranking: ndarray, cutoffs: list[int]
) -> dict[str, PerQuery]:
    """Compute Acc@K (Karpukhin et al., 2020, DPR): 1 if one of a query's K best passages holds an answer, else 0.

    Passages are read with their titles, best first, until one contains an answer."""
    check_answers(dataset, split, queries)
    answers = dataset.answers
    assert answers is not None
    hits = np.zeros((len(queries), max(cutoffs)), bool)
    for row, query in enumerate(queries.tolist()):
        answer_texts = [normalize(answer) for answer in answers.of(query)]
        for rank, document in enumerate(ranking[row, : max(cutoffs)].tolist()):
            if document >= 0 and contains_answer(normalize(dataset.passage_text(document)), answer_texts):
                hits[row, rank] = True
                break
    return {f"{ACCURACY}{cutoff}": accuracy(hits, cutoff) for cutoff in cutoffs}


def _drop_own(scores: ndarray, ranking: ndarray, own: ndarray) -> tuple[ndarray, ndarray]:
    is_own = ranking == own[:, None]
    order = np.argsort(is_own, axis=1, kind="stable")
    scores, ranking = np.take_along_axis(scores, order, 1), np.take_along_axis(ranking, order, 1)
    ranking[is_own.any(1), -1] = -1
    return scores, ranking
