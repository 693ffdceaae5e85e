"""Metrics as pure functions of arrays: rankings, pooled scores, and the tests that compare systems.

Examples:
    >>> rt.metrics.pooled_auc(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
    0.75
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytriever.lazy import lazy_names

if TYPE_CHECKING:
    from raytriever.metrics.auc import pooled_auc
    from raytriever.metrics.inputs import MetricInputError
    from raytriever.metrics.probability import CalibrationError, ScoreMap, calibration_error, fit_isotonic, fit_platt
    from raytriever.metrics.ranking import Relevance, measure_ranking

__all__ = [
    "CalibrationError",
    "MetricInputError",
    "Relevance",
    "ScoreMap",
    "calibration_error",
    "fit_isotonic",
    "fit_platt",
    "measure_ranking",
    "pooled_auc",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "raytriever.metrics.auc": ("pooled_auc",),
        "raytriever.metrics.inputs": ("MetricInputError",),
        "raytriever.metrics.probability": (
            "CalibrationError",
            "ScoreMap",
            "calibration_error",
            "fit_isotonic",
            "fit_platt",
        ),
        "raytriever.metrics.ranking": ("Relevance", "measure_ranking"),
    },
)
