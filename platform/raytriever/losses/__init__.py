"""Losses: functions of embeddings and ids that return a value and its gradients.

Examples:
    >>> scores = torch.tensor([[0.9, 0.2, 0.1], [0.3, 0.8, 0.2]], requires_grad=True)
    >>> loss = rt.losses.mann_whitney(scores, torch.tensor([[0], [1]]), temperature=0.1)
    >>> loss.backward()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytriever.errors import LossInputError
    from raytriever.losses.mw.functional import mann_whitney

__all__ = ["LossInputError", "mann_whitney"]
_MODULE_OF = {
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
