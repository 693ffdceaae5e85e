"""Checks of the inputs of metrics: scores, their queries, confidence levels and paired values.

Every metric raises `MetricInputError` for a NaN and for arrays of different lengths. A metric that needs queries raises
this error for a score without a query. A metric that is undefined for empty inputs raises it if an input is empty."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from raytriever.core.errors import UserError


class MetricInputError(UserError, ValueError):
    """A metric is undefined for its rankings, judgements or scores. The error is a `ValueError` too.

    Examples:
        >>> try:
        ...     rt.metrics.pooled_auc(np.array([np.nan]), np.array([0.5]))
        ... except rt.metrics.MetricInputError as error:
        ...     print(error.where)
        scores of positives
    """


def scores_of(values: ndarray, where: str) -> ndarray:
    """Return scores as a contiguous array of float32 or float64; infinities are allowed.

    Raises:
        MetricInputError: there is more than one axis, or a NaN, which cannot be ordered.
    """
    values = np.asarray(values)
    if values.ndim != 1:
        raise MetricInputError(f"the scores have the shape {values.shape}", where, "give an array with one axis")
    values = np.ascontiguousarray(values, np.float32 if values.dtype in (np.float16, np.float32) else np.float64)
    refuse_nan(values, where)
    return values


def refuse_nan(values: ndarray, where: str) -> None:
    """Raise `MetricInputError` if an entry is NaN."""
    # First check the sum, which needs no second array. The sum is NaN only for a NaN, or for infinities of both signs.
    with np.errstate(invalid="ignore", over="ignore"):
        suspicious = np.isnan(values.sum())
    if suspicious and (bad := np.flatnonzero(np.isnan(values))).size:
        remedy = "check that all embeddings are finite: a NaN cannot be ordered"
        raise MetricInputError(f"{bad.size} scores are NaN, the first at index {bad[0]}", where, remedy)


def check_queries(queries: ndarray, scores: ndarray, where: str, query_count: int | None = None) -> None:
    """Raise `MetricInputError` unless each score has the index of a query, from 0 and below `query_count`."""
    most = np.inf if query_count is None else query_count
    if queries.shape != scores.shape or (len(queries) and not 0 <= queries.min() <= queries.max() < most):
        what = "some scores have no query"
        raise MetricInputError(what, where, "give the index of a query for each score, counted from 0")


def check_confidence(confidence: float) -> None:
    """Raise `MetricInputError` unless a level of confidence is between 0 and 1."""
    if not 0 < confidence < 1:
        what = f"the confidence is {confidence}"
        raise MetricInputError(what, "confidence", "give a fraction between 0 and 1, such as 0.95")


def paired_differences(system: ndarray, baseline: ndarray) -> Float64[ndarray, " queries"]:
    """Return the differences of two systems' values per query.

    Raises:
        MetricInputError: a system does not have one finite value per query, or there are fewer than two queries.
    """
    ours, theirs = np.asarray(system, np.float64), np.asarray(baseline, np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape or len(ours) < 2:
        what = f"the systems' values have the shapes {ours.shape} and {theirs.shape}"
        raise MetricInputError(what, "paired test", "give both systems' values of the same queries, at least two")
    differences = ours - theirs
    if not np.isfinite(differences).all():
        query = int(np.flatnonzero(~np.isfinite(differences))[0])
        raise MetricInputError(f"query {query} has no finite value", "paired test", "remove the query from both")
    return differences
