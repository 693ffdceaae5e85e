"""Losses: functions of embeddings and ids that return a value and its gradients.

Examples:
    >>> scores = torch.tensor([[0.9, 0.2, 0.1], [0.3, 0.8, 0.2]], requires_grad=True)
    >>> loss = rt.losses.mann_whitney(scores, torch.tensor([[0], [1]]), temperature=0.1)
    >>> loss.backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raytriever.core.lazy_imports import lazy_names

if TYPE_CHECKING:
    from raytriever.core.errors import LossInputError
    from raytriever.losses.mw.functional import mann_whitney

__all__ = ["LossInputError", "mann_whitney"]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "raytriever.core.errors": ("LossInputError",),
        "raytriever.losses.mw.functional": ("mann_whitney",),
    },
)
