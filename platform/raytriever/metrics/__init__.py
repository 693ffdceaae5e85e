"""Metrics as pure functions of arrays: rankings, pooled scores, and the tests that compare systems.

Examples:
    >>> rt.metrics.pooled_auc(np.array([0.9, 0.5]), np.array([0.7, 0.1]))
    0.75
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytriever.metrics.auc import pooled_auc
    from raytriever.metrics.inputs import MetricInputError
    from raytriever.metrics.ranking import measure_ranking
    from raytriever.metrics.relevance import Relevance
    from raytriever.metrics.streaming import BoundedAuc, ScoreCounts, streaming_auc

__all__ = [
    "BoundedAuc",
    "MetricInputError",
    "Relevance",
    "ScoreCounts",
    "measure_ranking",
    "pooled_auc",
    "streaming_auc",
]
_MODULE_OF = {
    "BoundedAuc": "raytriever.metrics.streaming",
    "MetricInputError": "raytriever.metrics.inputs",
    "Relevance": "raytriever.metrics.relevance",
    "ScoreCounts": "raytriever.metrics.streaming",
    "measure_ranking": "raytriever.metrics.ranking",
    "pooled_auc": "raytriever.metrics.auc",
    "streaming_auc": "raytriever.metrics.streaming",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
