"""What a retriever is worth on one split: ranking metrics, and the AUC of its pooled scores.

1. Every query of the split that has a relevant document is searched in the whole corpus; a document that bears the
   query's own id is left out, as BEIR does.
2. nDCG@10, MRR@10 and Recall@100 are means over those queries; one without results counts 0.
3. AUC compares the scores of all positives with each query's 500 highest-scoring non-positives, all queries in one
   pool (Optimizing What Matters, section 5.1), so it also tells whether scores of different queries compare.
   Judged non-relevant documents are non-positives too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, Int64
from numpy import ndarray

from raytriever.data.dataset import RetrievalDataset
from raytriever.index.exact import tie_order, top_k
from raytriever.metrics.auc import auc
from raytriever.metrics.registry import measure_ranking
from raytriever.metrics.relevance import Relevance

AUC_NEGATIVES = 500
RUN_DEPTH = 100

# Queries by position, how many results: scores and documents, best first, -1 where there are fewer.
Search = Callable[[ndarray, int], tuple[ndarray, ndarray]]
# Pairs of (query position, document position): the score of each.
Score = Callable[[ndarray, ndarray], ndarray]


@dataclass(frozen=True)
class Evaluation:
    """One system on one split; queries are positions in the data set, in the order of `per_query` and `ranking`."""

    queries: Int64[ndarray, " queries"]
    ranking: Int64[ndarray, "queries depth"]
    scores: Float32[ndarray, "queries depth"]
    positive_scores: Float32[ndarray, " positives"]
    negative_scores: Float32[ndarray, " negatives"]
    per_query: dict[str, Float64[ndarray, " queries"]]

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the queries, and the pooled AUC."""
        means = {name: float(values.mean()) for name, values in self.per_query.items()}
        return means | {"auc": auc(self.positive_scores, self.negative_scores)}


def evaluate(dataset: RetrievalDataset, split: str, search: Search, score: Score) -> Evaluation:
    """Search every judged query of a split and measure the result.

    Args:
        dataset: opened with the split.
        split: its name.
        search: finds the best documents of queries.
        score: scores given pairs.
    """
    positives = dataset.positives(split)
    counts = np.diff(positives.offsets)
    depth = min(len(dataset.documents), max(RUN_DEPTH, AUC_NEGATIVES + int(counts.max())) + 1)
    scores, ranking = search(positives.queries, depth)
    own = _own_documents(dataset, positives.queries)
    scores, ranking = _without(scores, ranking, own)

    owner = np.repeat(np.arange(len(positives)), counts)
    kept = positives.documents != own[owner]
    relevance = Relevance(owner[kept], positives.documents[kept], _grades(dataset, split)[kept], len(positives))
    is_positive = relevance.gains(ranking) > 0
    negative = ~is_positive & (ranking >= 0)
    negative &= np.cumsum(negative, axis=1) <= AUC_NEGATIVES
    return Evaluation(
        queries=positives.queries,
        ranking=ranking[:, :RUN_DEPTH],
        scores=scores[:, :RUN_DEPTH].astype(np.float32),
        positive_scores=score(positives.queries[owner[kept]], positives.documents[kept]),
        negative_scores=scores[negative],
        per_query=measure_ranking(ranking, relevance),
    )


def evaluate_embeddings(
    dataset: RetrievalDataset,
    split: str,
    queries: Float32[ndarray, "split_queries width"],
    documents: Float32[ndarray, "documents width"],
) -> Evaluation:
    """`evaluate` for a dense retriever: the queries of `dataset.positives(split)`, in that order, and all documents."""
    ties = tie_order(dataset.documents.ids)
    row = np.full(len(dataset.queries), -1)
    row[dataset.positives(split).queries] = np.arange(len(queries))

    def search(wanted: ndarray, depth: int) -> tuple[ndarray, ndarray]:
        return top_k(queries[row[wanted]], documents, depth, ties)

    def score(of: ndarray, to: ndarray) -> ndarray:
        return np.einsum("pw,pw->p", queries[row[of]], documents[to])

    return evaluate(dataset, split, search, score)


def _grades(dataset: RetrievalDataset, split: str) -> ndarray:
    scores = dataset.judgements[split].scores
    return scores[scores > 0]


def _own_documents(dataset: RetrievalDataset, queries: ndarray) -> ndarray:
    """For each query the document with the same id, or -2, which stands for none and is never ranked."""
    names = [dataset.queries.ids[query] for query in queries]
    wanted = set(names)
    place = {name: position for position, name in enumerate(dataset.documents.ids) if name in wanted}
    return np.array([place.get(name, -2) for name in names], dtype=np.int64)


def _without(scores: ndarray, ranking: ndarray, own: ndarray) -> tuple[ndarray, ndarray]:
    """The ranking with each query's own document taken out, and -1 at the end in its stead."""
    is_own = ranking == own[:, None]
    order = np.argsort(is_own, axis=1, kind="stable")
    scores, ranking = np.take_along_axis(scores, order, 1), np.take_along_axis(ranking, order, 1)
    ranking[is_own.any(1), -1] = -1
    return scores, ranking
