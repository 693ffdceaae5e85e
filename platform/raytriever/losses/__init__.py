"""Losses: functions of embeddings and ids that return a value and its gradients."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytriever.errors import LossInputError
    from raytriever.losses.config import LOSS_NAMES
    from raytriever.losses.mw.functional import mann_whitney

__all__ = ["LOSS_NAMES", "LossInputError", "mann_whitney"]
_MODULE_OF = {
    "LOSS_NAMES": "raytriever.losses.config",
    "LossInputError": "raytriever.errors",
    "mann_whitney": "raytriever.losses.mw.functional",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
