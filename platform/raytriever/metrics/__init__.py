"""Metrics as pure functions of arrays: rankings, pooled scores, thresholds, and tests that compare systems.

Examples:
    >>> rt.metrics.pooled_auc(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
    0.75
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytriever.core.lazy_imports import lazy_names

if TYPE_CHECKING:
    from raytriever.metrics.auc import pooled_auc
    from raytriever.metrics.metric_inputs import MetricInputError
    from raytriever.metrics.ranking_metrics import Relevance, evaluate_ranking
    from raytriever.metrics.score_to_probability import (
        CalibrationError,
        ScoreMap,
        calibration_error,
        fit_isotonic,
        fit_platt,
    )

__all__ = [
    "CalibrationError",
    "MetricInputError",
    "Relevance",
    "ScoreMap",
    "calibration_error",
    "evaluate_ranking",
    "fit_isotonic",
    "fit_platt",
    "pooled_auc",
]  # fmt: skip
_OF_SCORES = ("CalibrationError", "ScoreMap", "calibration_error", "fit_isotonic", "fit_platt")
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "raytriever.metrics.auc": ("pooled_auc",),
        "raytriever.metrics.metric_inputs": ("MetricInputError",),
        "raytriever.metrics.score_to_probability": _OF_SCORES,
        "raytriever.metrics.ranking_metrics": ("Relevance", "evaluate_ranking"),
    },
)
