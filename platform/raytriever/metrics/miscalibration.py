"""Calibration error: how far probabilities of relevance are from the shares that are relevant.

The usual estimate (Guo et al., 2017) adds up absolute differences, which are never 0: exactly right probabilities of 50
queries have an error of 0.18. Here the squared error is estimated without bias, as Kumar, Liang & Ma (2019) do, from
products of differences of two different queries. The interval resamples whole queries. How often it contains the true
error is measured by `benchmarks/interval_coverage.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy import ndarray

from raytriever.metrics.inputs import MetricInputError, check_queries, scores_of
from raytriever.metrics.selective import BLOCK, bootstrap_interval, in_blocks
from raytriever.metrics.top_answers import ScoredPools

BINS = 15
# Fewer queries in a bin say little about it, and every bin adds to the error of the estimate.
QUERIES_PER_BIN = 10
_SAMPLES, _SEED = 1_000, 0
_WHERE = "calibration error"


@dataclass(frozen=True)
class CalibrationError:
    """Root of the mean squared calibration error, with its interval.

    Args:
        value: 0 to 1; 0 if the squared error is estimated at 0 or below. NaN if no bin has pairs of two queries.
        low: lower bound of the interval; 0 means that the probabilities may be exactly right.
        high: upper bound of the interval.

    Examples:
        >>> rt.metrics.calibration_error(np.full(40, 0.5), np.arange(40) % 2 == 0).value
        0.0
    """

    value: float
    low: float
    high: float


def calibration_error(
    probabilities: Float[ndarray, " pairs"],
    relevant: Bool[ndarray, " pairs"],
    queries: Int64[ndarray, " pairs"] | None = None,
    confidence: float = 0.95,
) -> CalibrationError:
    """Estimate the calibration error of probabilities.

        error² = Σ_b (n_b / n) mean_{i ≠ j} d_i d_j,   d = probability - relevant, of two pairs i and j of bin b

    The bins hold equally many pairs; equal probabilities share a bin, so there may be fewer. There are 15 of them, and
    at most one for 10 queries. The products are of pairs of different queries, so the error of one query does not
    count as an error of the map.

    Args:
        probabilities: probability of relevance of each pair, 0 to 1, of pairs that the map was not fitted on.
        relevant: whether each pair is relevant.
        queries: number of the query of each pair, from 0; by default each pair is of its own query.
        confidence: confidence of the interval (percentiles of 1,000 resamples of the queries).

    Raises:
        MetricInputError: there is no pair, a probability is not finite, or the lengths differ.

    Examples:
        >>> right = np.arange(200) % 4 == 0
        >>> error = rt.metrics.calibration_error(np.full(200, 0.5), right)
        >>> round(error.value, 2), bool(error.low > 0.15)
        (0.25, True)
    """
    probabilities, relevant = checked_pairs(probabilities, relevant, _WHERE)
    queries = np.arange(len(relevant)) if queries is None else queries
    check_queries(queries, relevant, _WHERE)
    bins = _bins(len(np.unique(queries)))
    edges = _edges(probabilities, bins)
    return _estimate(np.searchsorted(edges, probabilities, "right"), probabilities - relevant, queries, confidence)


def calibration_error_of_scores(
    choosing: ScoredPools, checking: ScoredPools, confidence: float = 0.95
) -> CalibrationError:
    """Estimate the calibration error of scores as probabilities of relevance.

    Scores are cut into bins of equally many scores on the choosing split. The share of positives in a bin is the
    probability that a score in it is relevant (histogram binning: Zadrozny & Elkan, 2001). These probabilities are
    compared with the checking split; see `calibration_error`. Scores outside the range of the choosing split belong to
    its first and last bin. Both splits have pools that were made in the same way.
    """
    pools = [scores_of(pool, "scores") for pool in (choosing.positives, choosing.negatives)]
    others = [scores_of(pool, "scores") for pool in (checking.positives, checking.negatives)]
    scores = np.concatenate(others)
    if not sum(map(len, pools)) or not len(scores):
        raise MetricInputError("no scores", _WHERE, "give at least one for each split")
    queries = np.arange(len(scores))
    if checking.positive_queries is not None and checking.negative_queries is not None:
        queries = np.concatenate([checking.positive_queries, checking.negative_queries])
        check_queries(queries, scores, _WHERE)
    edges = _edges(np.concatenate(pools), _bins(len(np.unique(queries))))
    chosen = [np.bincount(np.searchsorted(edges, pool, "right"), minlength=len(edges) + 1) for pool in pools]
    # Only the bin below the lowest score of the choosing split can be empty there.
    share = chosen[0] / np.maximum(chosen[0] + chosen[1], 1)
    bin_of, relevant = np.searchsorted(edges, scores, "right"), np.arange(len(scores)) < len(others[0])
    return _estimate(bin_of, share[bin_of] - relevant, queries, confidence)


def squared_calibration_error(
    probabilities: Float[ndarray, " queries"],
    right: Bool[ndarray, " queries"],
    weights: Float[ndarray, "samples queries"] | None = None,
) -> Float64[ndarray, " samples"]:
    """Estimate the squared `calibration_error` of samples of the queries, in the bins of all queries.

    `weights` are those of `metrics.selective`, and `right` says whether the best document of each query is relevant.

    Returns:
        Estimates without bias, so they are below 0 about as often as above for exactly right probabilities.
    """
    probabilities, right = checked_pairs(probabilities, right, _WHERE)
    bin_of = np.searchsorted(_edges(probabilities, _bins(len(right))), probabilities, "right")
    sums, counts = _by_query(bin_of, probabilities - right, np.arange(len(right)))
    return in_blocks(partial(_squared, sums, counts), weights, len(right))


def checked_pairs(
    scores: ndarray, relevant: ndarray, where: str
) -> tuple[Float64[ndarray, " pairs"], Bool[ndarray, " pairs"]]:
    """Return scores of pairs in float64, and relevance as booleans."""
    scores, relevant = scores_of(scores, where).astype(np.float64), np.asarray(relevant)
    if relevant.shape != scores.shape or not len(scores):
        raise MetricInputError(
            f"{len(scores):,} scores and relevance of shape {relevant.shape}", where, "give both for at least one pair"
        )
    if not np.isfinite(scores).all():
        raise MetricInputError("a score is infinite", where, "leave such pairs out")
    return scores, relevant.astype(bool)


def _bins(queries: int) -> int:
    return max(1, min(BINS, queries // QUERIES_PER_BIN))


def _edges(values: ndarray, bins: int) -> ndarray:
    """Return the lower edges of bins of equally many values, without the first bin's."""
    return np.unique(np.sort(values)[np.arange(1, bins) * len(values) // bins])


def _estimate(bin_of: ndarray, differences: ndarray, queries: ndarray, confidence: float) -> CalibrationError:
    """Estimate the error, and its interval from resampled queries."""
    sums, counts = _by_query(bin_of, differences, queries)
    rng, count = np.random.default_rng(_SEED), len(sums)
    rows, shares = max(1, BLOCK // count), np.full(count, 1 / count)
    samples = np.concatenate(
        [
            _squared(sums, counts, rng.multinomial(count, shares, min(rows, _SAMPLES - start)).astype(np.float64))
            for start in range(0, _SAMPLES, rows)
        ]
    )
    value, bounds = _squared(sums, counts, np.ones((1, count)))[0], bootstrap_interval(samples, confidence)
    if not np.isfinite([value, *bounds]).all():
        return CalibrationError(float("nan"), float("nan"), float("nan"))
    return CalibrationError(*(float(np.sqrt(max(0.0, one))) for one in (value, *bounds)))


def _by_query(
    bin_of: ndarray, differences: ndarray, queries: ndarray
) -> tuple[Float64[ndarray, "queries bins"], Float64[ndarray, "queries bins"]]:
    """Return the sum of the differences, and the number of pairs, of each query in each bin."""
    rows = np.unique(queries, return_inverse=True)[1]
    shape = int(rows.max()) + 1, int(bin_of.max()) + 1
    cells, size = rows * shape[1] + bin_of, shape[0] * shape[1]
    sums, counts = np.bincount(cells, differences, size), np.bincount(cells, minlength=size).astype(np.float64)
    return sums.reshape(shape), counts.reshape(shape)


def _squared(sums: ndarray, counts: ndarray, weights: ndarray) -> Float64[ndarray, " samples"]:
    """Return the squared error of each sample; NaN if none of its bins has pairs of two queries."""
    numbers, squares = weights @ counts, weights**2
    products = (weights @ sums) ** 2 - squares @ sums**2  # of two different queries
    pairs = numbers**2 - squares @ counts**2
    usable = pairs > 0.5  # whole numbers, but for rounding
    with np.errstate(invalid="ignore"):
        of_bins = np.where(usable, numbers * products / np.where(usable, pairs, 1), 0)
        return np.asarray(of_bins.sum(axis=1) / np.where(usable, numbers, 0).sum(axis=1))
