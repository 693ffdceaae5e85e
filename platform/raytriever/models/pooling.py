"""Token states to one embedding a text: mean (sentence-transformers), CLS (DPR), or last token (decoder models)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

States = Float[Tensor, "texts tokens width"]
Mask = Int64[Tensor, "texts tokens"]
Pooled = Float[Tensor, "texts width"]


def mean_pooling(states: States, mask: Mask) -> Pooled:
    """The mean over a text's own tokens, in float32 whatever the states are."""
    weights = mask.unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weights).sum(1) / weights.sum(1).clamp(min=1)


def cls_pooling(states: States, mask: Mask) -> Pooled:
    """The first token of the text, wherever padding puts it."""
    first = mask.to(torch.int8).argmax(1)
    return states[torch.arange(len(states), device=states.device), first].to(torch.float32)


def last_pooling(states: States, mask: Mask) -> Pooled:
    """The last token of the text, with padding on either side."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * positions).argmax(1)
    return states[torch.arange(len(states), device=states.device), last].to(torch.float32)


POOLING: dict[str, Callable[[States, Mask], Pooled]] = {
    "mean": mean_pooling,
    "cls": cls_pooling,
    "last": last_pooling,
}
