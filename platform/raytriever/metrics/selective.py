"""Selective retrieval: a query's best document is shown if its score reaches a threshold, otherwise nothing is.

Each query has the score of its best document, and whether that document is relevant (`right`). A query without a
relevant document in the corpus is never right. Higher scores are more confident, and queries of equal score are shown
together.

Every function takes `weights`, one row for each sample of the queries, and returns a value for each row. A resampled
query has the number of times that it was drawn, a query that is left out has 0. So intervals (`resampled`) and
pseudo-values (`pseudo_values`) are computed without a loop over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, check_confidence, scores_of

# Weights in memory at once.
BLOCK = 1 << 22
Statistic = Callable[[Float64[ndarray, "samples queries"]], Float64[ndarray, " samples"]]


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curve, a point for each threshold, from the highest score down.

    `coverage` is the share of the queries that are shown a document, ascending, 1 at the end, and `risk` the share of
    these whose document is not relevant.
    """

    scores: Float64[ndarray, " thresholds"]
    coverage: Float64[ndarray, " thresholds"]
    risk: Float64[ndarray, " thresholds"]


def risk_coverage(scores: Float[ndarray, " queries"], right: Bool[ndarray, " queries"]) -> RiskCoverage:
    """Compute the risk-coverage curve (El-Yaniv & Wiener, 2010)."""
    scores, wrong = _check(scores, ~np.asarray(right, bool))
    order, ends = _order(scores)
    shown, errors = ends + 1.0, np.cumsum(wrong[order])[ends]
    return RiskCoverage(scores[order][ends], shown / len(scores), errors / shown)


def area_under_risk_coverage(
    scores: Float[ndarray, " queries"],
    right: Bool[ndarray, " queries"],
    weights: Float[ndarray, "samples queries"] | None = None,
) -> Float64[ndarray, " samples"]:
    """Compute the area under the risk-coverage curve, AURC (Geifman, Uziel & El-Yaniv, 2019).

        AURC = (1 / n) Σ_q risk(s_q),   risk(s) = wrong queries with a score of s or more / queries with such a score

    It is 0 to 1, and lower is better. It depends on the share of right answers too.
    """
    scores, wrong = _check(scores, ~np.asarray(right, bool))
    order, ends = _order(scores)

    def area(some: ndarray) -> ndarray:
        drawn = some[:, order]
        shown = np.cumsum(drawn, axis=1)[:, ends]
        errors = np.cumsum(drawn * wrong[order], axis=1)[:, ends]
        risk = errors / np.maximum(shown, np.finfo(np.float64).tiny)
        return (np.diff(shown, axis=1, prepend=0) * risk).sum(axis=1) / shown[:, -1]

    return in_blocks(area, weights, len(scores))


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
    query is answerable.
    """
    scores, is_right = _check(scores, np.asarray(right, bool))
    _, is_answerable = _check(scores, np.asarray(answerable, bool))
    shown = (scores >= threshold).astype(np.float64)

    def f1(some: ndarray) -> ndarray:
        return 2 * (some @ (shown * is_right)) / np.maximum(some @ (shown + is_answerable), 1)

    return in_blocks(f1, weights, len(scores))


def pseudo_values(statistic: Statistic, count: int) -> Float64[ndarray, " queries"]:
    """Compute the jackknife pseudo-value of each query: n θ - (n - 1) θ without it (Tukey, 1958).

    Their mean is nearly the statistic, and they stand for its values by query in a paired test.
    """
    whole = statistic(np.ones((1, count)))[0]
    return np.asarray(count * whole - (count - 1) * statistic(1 - np.eye(count)))


def resampling_weights(counts: Sequence[int], samples: int, seed: int) -> Float64[ndarray, "samples queries"]:
    """Draw queries with replacement, as many as there are, from each data set on its own.

    `counts` are the queries of each data set, in the order of the queries. Return how often each query was drawn.
    """
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [rng.multinomial(count, np.full(count, 1 / count), size=samples) for count in counts], axis=1
    ).astype(np.float64)


def bootstrap_interval(values: Float[ndarray, " samples"], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a statistic from its values on resampled queries (percentile bootstrap; Efron, 1979).

    Samples without a value, NaN, are left out.
    """
    check_confidence(confidence)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _check(scores: ndarray, values: ndarray) -> tuple[Float64[ndarray, " queries"], Float64[ndarray, " queries"]]:
    """Return checked scores and the values of the same queries, in float64."""
    where = "selective retrieval"
    scores, values = scores_of(scores, where).astype(np.float64), scores_of(values, where).astype(np.float64)
    if not len(scores) or scores.shape != values.shape:
        raise MetricInputError(
            f"{len(scores):,} scores and {len(values):,} values", where, "give one of each for at least one query"
        )
    return scores, values


def _order(scores: ndarray) -> tuple[ndarray, ndarray]:
    """Return the order of descending scores, and the index in it of the last query of each score."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    return order, np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(order) - 1)


def in_blocks(statistic: Statistic, weights: ndarray | None, count: int) -> Float64[ndarray, " samples"]:
    """Return the statistic of each row of weights, in blocks of bounded memory; of all queries without weights."""
    weights = np.ones((1, count)) if weights is None else weights
    rows = max(1, BLOCK // count)
    return np.concatenate([statistic(weights[start : start + rows]) for start in range(0, len(weights), rows)])
