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
from scipy.special import digamma

from raytriever.metrics.inputs import MetricInputError, check_confidence, scores_of

# Shares of the queries for which nothing is shown, of MTEB's nAUC.
ABSTENTION_RATES = np.linspace(0, 1, 11)[:-1]
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

    It is 0 to 1, and lower is better. It depends on the share of right answers too; see `least_area`.
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


def least_area(
    right: Bool[ndarray, " queries"], weights: Float[ndarray, "samples queries"] | None = None
) -> Float64[ndarray, " samples"]:
    """Compute the AURC of a score that puts all right queries first: the least that a threshold can reach.

        (1 / n) Σ_{i = k + 1}^{n} (i - k) / i,   k right queries of n

    AURC minus this area is the excess (E-AURC), which does not depend on the share of right answers alone. Weights are
    whole numbers.
    """
    is_right = np.asarray(right, np.float64)

    def area(some: ndarray) -> ndarray:
        count, first = some.sum(axis=1), some @ is_right
        return (count - first - first * (digamma(count + 1) - digamma(first + 1))) / count

    return in_blocks(area, weights, len(is_right))


def precision_at_coverage(
    scores: Float[ndarray, " queries"],
    right: Bool[ndarray, " queries"],
    coverage: float,
    weights: Float[ndarray, "samples queries"] | None = None,
) -> Float64[ndarray, " samples"]:
    """Compute the share of relevant documents among those shown, at the highest threshold that shows enough.

    `coverage` is the least share of the queries that are shown a document, above 0 and at most 1.
    """
    if not 0 < coverage <= 1:
        raise MetricInputError(f"a coverage of {coverage}", "coverage", "give a share above 0 and at most 1")
    scores, is_right = _check(scores, np.asarray(right, bool))
    order, ends = _order(scores)

    def precision(some: ndarray) -> ndarray:
        drawn = some[:, order]
        shown = np.cumsum(drawn, axis=1)[:, ends]
        hits = np.cumsum(drawn * is_right[order], axis=1)[:, ends]
        # Without the margin, 0.7 of 10 queries would be more than 7 of them.
        first = (shown >= coverage * shown[:, -1:] * (1 - 1e-12)).argmax(axis=1)
        rows = np.arange(len(some))
        return hits[rows, first] / shown[rows, first]

    return in_blocks(precision, weights, len(scores))


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


def best_answer_threshold(
    scores: Float[ndarray, " queries"], right: Bool[ndarray, " queries"], answerable: Bool[ndarray, " queries"]
) -> float:
    """Choose the threshold with the highest `answer_f1`; the highest such score."""
    scores, is_right = _check(scores, np.asarray(right, bool))
    _, is_answerable = _check(scores, np.asarray(answerable, bool))
    if not 0 < is_right.sum() < len(scores):
        raise MetricInputError(
            f"{int(is_right.sum())} of {len(scores)} best documents are relevant",
            "threshold",
            "choose it on queries with and without a relevant best document",
        )
    order, ends = _order(scores)
    f1 = 2 * np.cumsum(is_right[order])[ends] / (ends + 1 + is_answerable.sum())
    return float(scores[order][ends][f1.argmax()])


def abstention_nauc(
    confidence: Float[ndarray, " queries"],
    values: Float[ndarray, " queries"],
    weights: Float[ndarray, "samples queries"] | None = None,
) -> Float64[ndarray, " samples"]:
    """Compute MTEB's normalised area under the abstention curve (nAUC; Gisserot-Boukhlef et al., 2024).

    The curve is the mean of a metric over the queries that remain when the least confident 0, 10, ... 90 % are left
    out. Its area is placed between that of a flat curve (0) and that of a confidence equal to the metric (1). Queries
    of equal confidence have the mean of their metric, as in MTEB 2.26. The confidence of a query is for MTEB its
    highest score (`max`), the standard deviation of its scores (`std`), or the difference of the two highest (`diff1`).
    Weights are whole numbers.

    Returns:
        At most 1, below 0 if confidence misleads; NaN if all values are equal.
    """
    confidence, values = _check(confidence, values)

    def nauc(some: ndarray) -> ndarray:
        curve, best = _abstention_curve(confidence, values, some), _abstention_curve(values, values, some)
        flat = best[:, 0] * (ABSTENTION_RATES[-1] - ABSTENTION_RATES[0])
        gain = np.trapezoid(best, ABSTENTION_RATES, axis=1) - flat
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gain == 0, np.nan, (np.trapezoid(curve, ABSTENTION_RATES, axis=1) - flat) / gain)

    return in_blocks(nauc, weights, len(values))


def _abstention_curve(confidence: ndarray, values: ndarray, weights: ndarray) -> Float64[ndarray, "samples rates"]:
    """Return the mean value of the queries that remain at each rate, in each sample."""
    order = np.argsort(confidence, kind="stable")
    starts = np.flatnonzero(np.diff(confidence[order], prepend=-np.inf) != 0)
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)
    means = np.add.reduceat(weights[:, order] * values[order], starts, axis=1) / np.maximum(sizes, 1)
    ends = np.cumsum(sizes, axis=1)
    count = ends[:, -1:]
    curve = np.empty((len(weights), len(ABSTENTION_RATES)))
    for column, rate in enumerate(ABSTENTION_RATES):
        left_out = np.minimum(np.round(rate * count), count - 1)
        remaining = sizes - np.clip(left_out - (ends - sizes), 0, sizes)
        curve[:, column] = (remaining * means).sum(axis=1) / remaining.sum(axis=1)
    return curve


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
