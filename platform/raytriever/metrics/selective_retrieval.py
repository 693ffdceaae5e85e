"""Selective retrieval: the best document of a query is shown only if its score reaches a threshold.

The input for each query is the score of its best document, and whether that document is relevant (`right`). A query
without a relevant document in the corpus is never right. Higher scores are more confident, and queries of equal score
are shown together.

Every function takes `weights`, one row for each sample of the queries, and returns a value for each row. The weight of
a query is the number of times that the sample contains it. So intervals need no loop over samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from raytriever.metrics.metric_inputs import MetricInputError, check_confidence, scores_of

# Maximum number of weights in memory at once.
BLOCK = 1 << 22
Statistic = Callable[[Float64[ndarray, "samples queries"]], Float64[ndarray, " samples"]]


def area_under_risk_coverage(
    scores: Float[ndarray, " queries"],
    right: Bool[ndarray, " queries"],
    weights: Float[ndarray, "samples queries"] | None = None,
) -> Float64[ndarray, " samples"]:
    """Compute the area under the risk-coverage curve, AURC (Geifman, Uziel & El-Yaniv, 2019).

        AURC = (1 / n) Σ_q risk(s_q),   risk(s) = wrong queries with a score of s or more / queries with such a score

    It is 0 to 1, and lower is better. It also depends on the fraction of right answers."""
    scores, wrong = checked_values(scores, ~np.asarray(right, bool))
    order, ends = by_score(scores)

    def area(some: ndarray) -> ndarray:
        shuffled = some[:, order]
        shown = np.cumsum(shuffled, axis=1)[:, ends]
        errors = np.cumsum(shuffled * wrong[order], axis=1)[:, ends]
        risk = errors / np.maximum(shown, np.finfo(np.float64).tiny)
        return (np.diff(shown, axis=1, prepend=0) * risk).sum(axis=1) / shown[:, -1]

    return in_blocks(area, weights, len(scores))


# Fractions of the queries that an abstention curve leaves out, as in MTEB.
_ABSTENTION = np.linspace(0, 1, 11)[:-1]


def normalized_abstention_auc(confidence: Float[ndarray, " queries"], values: Float[ndarray, " queries"]) -> float:
    """Compute nAUC: a metric's gain if queries of low confidence are left out (Gisserot-Boukhlef et al., 2024).

        nAUC = (A(confidence) - A(flat)) / (A(values) - A(flat))

    A is the area under the mean of a metric over the remaining queries, when 0 to 90 % of the queries are left out,
    the least confident first. A(flat) uses the mean over all queries. nAUC is 1 for an oracle, 0 for a
    confidence without information, and may be negative. It is NaN if all values are equal. Queries of equal confidence
    get their mean value, as in MTEB.

    Args:
        confidence: confidence of each query; -inf is the lowest.
        values: value of a metric for each query.
    """
    scores, values = checked_values(confidence, values)
    if values.min() == values.max():
        return float("nan")
    flat = float(values.mean()) * (_ABSTENTION[-1] - _ABSTENTION[0])
    own, oracle = (_abstention_area(order, values) for order in (scores, values))
    return (own - flat) / (oracle - flat)


def _abstention_area(scores: ndarray, values: ndarray) -> float:
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ordered = np.repeat(np.bincount(group, values) / counts, counts)
    left_out = [min(round(fraction * len(values)), len(values) - 1) for fraction in _ABSTENTION]
    return float(np.trapezoid([ordered[first:].mean() for first in left_out], _ABSTENTION))


def resampling_weights(counts: Sequence[int], samples: int, seed: int) -> Float64[ndarray, "samples queries"]:
    """Resample the queries of each data set separately, with replacement. Return how often each query was sampled.
    `counts` are the numbers of queries of the data sets, in the order of the queries."""
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [rng.multinomial(count, np.full(count, 1 / count), size=samples) for count in counts], axis=1
    ).astype(np.float64)


def bootstrap_interval(values: Float[ndarray, " samples"], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a statistic from its values on resampled queries (percentile bootstrap; Efron, 1979).
    Samples whose value is NaN are left out."""
    check_confidence(confidence)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def checked_values(
    scores: ndarray, values: ndarray
) -> tuple[Float64[ndarray, " queries"], Float64[ndarray, " queries"]]:
    """Check scores and values of the same queries, and return them in float64; raises `MetricInputError`."""
    where = "selective retrieval"
    scores, values = scores_of(scores, where).astype(np.float64), scores_of(values, where).astype(np.float64)
    if not len(scores) or scores.shape != values.shape:
        what = f"there are {len(scores):,} scores and {len(values):,} values"
        raise MetricInputError(what, where, "give one of each for at least one query")
    return scores, values


def by_score(scores: ndarray) -> tuple[ndarray, ndarray]:
    """Return the order of descending scores, and the index in this order of the last query of each score."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    return order, np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(order) - 1)


def in_blocks(statistic: Statistic, weights: ndarray | None, count: int) -> Float64[ndarray, " samples"]:
    """Return the statistic of each row of weights, in blocks that limit the memory. None weighs all queries equally."""
    weights = np.ones((1, count)) if weights is None else weights
    rows = max(1, BLOCK // count)
    return np.concatenate([statistic(weights[start : start + rows]) for start in range(0, len(weights), rows)])
