"""The ranking metrics by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float64
from numpy import ndarray

from raytriever.metrics.mrr import mrr
from raytriever.metrics.ndcg import ndcg
from raytriever.metrics.recall import recall
from raytriever.metrics.relevance import Ranking, Relevance

RankingMetric = Callable[[Ranking, Relevance, int], Float64[ndarray, " queries"]]

# Name on paper, function, cutoff. The names hold no `@`: the tracking server refuses it.
RANKING_METRICS: dict[str, tuple[RankingMetric, int]] = {
    "ndcg_at_10": (ndcg, 10),
    "mrr_at_10": (mrr, 10),
    "recall_at_100": (recall, 100),
}


def measure_ranking(ranking: Ranking, relevance: Relevance) -> dict[str, Float64[ndarray, " queries"]]:
    """Every registered metric, per query.

    Args:
        ranking: document positions, best first, padded with -1; a query with none counts 0.
        relevance: the judgements; queries without a relevant document score 0 and belong left out by the caller.
    """
    return {name: metric(ranking, relevance, cutoff) for name, (metric, cutoff) in RANKING_METRICS.items()}
