"""The ranking metrics by name. A new one is a file beside this one and a line here.

A name is that of a metric and its cutoff, `ndcg_at_10`; without a cutoff, `map`, the whole ranking counts. The names
hold no `@`: the tracking server refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raytriever.metrics.average_precision import average_precision
from raytriever.metrics.inputs import MetricInputError
from raytriever.metrics.judged import judged
from raytriever.metrics.mrr import mrr
from raytriever.metrics.ndcg import ndcg
from raytriever.metrics.precision import precision
from raytriever.metrics.r_precision import r_precision
from raytriever.metrics.recall import recall
from raytriever.metrics.relevance import PerQuery, Placed, Ranking, Relevance
from raytriever.metrics.success import success
from raytriever.options import did_you_mean


@dataclass(frozen=True)
class RankingMetric:
    """A metric, its name in print, and whether its name has a cutoff."""

    measure: Callable[[Placed, Any], PerQuery]
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
    """The named metrics, per query.

    Args:
        ranking: document positions, best first, padded with -1; a query with none counts 0.
        relevance: the judgements; queries without a relevant document count 0 here and nothing in `mean`.
        names: as in `ranking_metric`.
        level: the grade from which on a document is relevant in all of them but nDCG.
    """
    metrics = {name: ranking_metric(name) for name in names}
    placed = relevance.placed(ranking, level)
    return {name: metric.measure(placed, cutoff) for name, (metric, cutoff) in metrics.items()}


def mean(values: PerQuery, relevance: Relevance, level: int = 1) -> float:
    """The mean over the queries that have a relevant document; NaN if none has.

    No ranking can do anything for a query without one. trec_eval counts such a query 0 where the judgements name it;
    here it is left out of the mean of every metric, so that all means of a table are over the same queries.
    """
    counted = np.bincount(relevance.queries[relevance.scores >= level], minlength=relevance.query_count) > 0
    return float(values[counted].mean()) if counted.any() else float("nan")
