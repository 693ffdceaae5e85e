"""Further measures of selective retrieval: the risk-coverage curve, the F1 of shown documents, and pseudo-values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from raytriever.metrics.selective_retrieval import Statistic, by_score, checked_values, in_blocks


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curve, a point for each threshold, from the highest score down.

    `coverage` is the fraction of the queries that are shown a document, ascending, 1 at the end, and `risk` the
    fraction of these whose document is not relevant."""

    scores: Float64[ndarray, " thresholds"]
    coverage: Float64[ndarray, " thresholds"]
    risk: Float64[ndarray, " thresholds"]


def risk_coverage(scores: Float[ndarray, " queries"], right: Bool[ndarray, " queries"]) -> RiskCoverage:
    """Compute the risk-coverage curve (El-Yaniv & Wiener, 2010)."""
    scores, wrong = checked_values(scores, ~np.asarray(right, bool))
    order, ends = by_score(scores)
    shown, errors = ends + 1.0, np.cumsum(wrong[order])[ends]
    return RiskCoverage(scores[order][ends], shown / len(scores), errors / shown)


def answer_f1(
    scores: Float[ndarray, " queries"],
    right: Bool[ndarray, " queries"],
    answerable: Bool[ndarray, " queries"],
    threshold: float,
    weights: Float[ndarray, "samples queries"] | None = None,
) -> Float64[ndarray, " samples"]:
    """Compute the F1 of the documents shown at a threshold.

        precision = right shown / shown,   recall = right shown / answerable,   F1 = 2 right / (shown + answerable)

    `answerable` says whether the corpus has a relevant document for the query. The F1 is 0 if nothing is shown and no
    query is answerable."""
    scores, is_right = checked_values(scores, np.asarray(right, bool))
    _, is_answerable = checked_values(scores, np.asarray(answerable, bool))
    shown = (scores >= threshold).astype(np.float64)

    def f1(some: ndarray) -> ndarray:
        return 2 * (some @ (shown * is_right)) / np.maximum(some @ (shown + is_answerable), 1)

    return in_blocks(f1, weights, len(scores))


def pseudo_values(statistic: Statistic, count: int) -> Float64[ndarray, " queries"]:
    """Compute the jackknife pseudo-value of each query: n θ - (n - 1) θ without it (Tukey, 1958).

    Their mean is nearly the statistic, and a paired test takes them as its values by query."""
    whole = statistic(np.ones((1, count)))[0]
    return np.asarray(count * whole - (count - 1) * statistic(1 - np.eye(count)))
