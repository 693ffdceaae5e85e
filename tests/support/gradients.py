"""Distances of gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def distance(ours: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    """Return the norm of the difference over the norm of the others, which is not zero."""
    one, other = (torch.cat([item.detach().cpu().double().flatten() for item in side]) for side in (ours, others))
    assert one.shape == other.shape
    assert other.norm() > 0
    return float((one - other).norm() / other.norm())
