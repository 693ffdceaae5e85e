"""Pooling of the states of a text's tokens into one vector, with the modes of sentence-transformers.

All modes work with padding on either side and compute in float32. The first tokens of a text, those of its prompt, can
be left out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

States = Float[Tensor, "texts tokens width"]
Mask = Int64[Tensor, "texts tokens"]
Pooled = Float[Tensor, "texts width"]


def pool(states: States, mask: Mask, pooling: str, left_out: int | Tensor = 0) -> Float[Tensor, "texts pooled"]:
    """Return one float32 vector per text.

    Args:
        states: states of the tokens, of any type.
        mask: 1 for tokens, 0 for padding.
        pooling: a mode of `MODES`, or several joined by `+`, whose vectors are concatenated.
        left_out: number of first tokens of each text that are not pooled; an integer, or `[texts]`.

    Example:
        >>> states, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])
        >>> pool(states, mask, "mean+max")
        tensor([[2., 3.]])
    """
    places = mask.cumsum(1)  # 1 for the first token of a text, also after padding
    if isinstance(left_out, Tensor):
        left_out = left_out[:, None]
    kept = mask * (places > left_out)
    return torch.cat([MODES[mode](states, kept, places) for mode in pooling.split("+")], dim=1)


def _mean(states: States, kept: Mask, places: Mask) -> Pooled:
    weights = kept.unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weights).sum(1) / weights.sum(1).clamp(min=1)


def _mean_sqrt_len(states: States, kept: Mask, places: Mask) -> Pooled:
    """Return the sum divided by the square root of the number of tokens."""
    weights = kept.unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weights).sum(1) / weights.sum(1).clamp(min=1).sqrt()


def _weighted_mean(states: States, kept: Mask, places: Mask) -> Pooled:
    """Return the mean in which the nth token of a text has the weight n (Muennighoff 2022, arXiv:2202.08904)."""
    weights = (kept * places).unsqueeze(-1).to(torch.float32)
    return (states.to(torch.float32) * weights).sum(1) / weights.sum(1).clamp(min=1)


def _max(states: States, kept: Mask, places: Mask) -> Pooled:
    """Return the largest value of each component; 0 for a text without tokens."""
    most = states.to(torch.float32).masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).amax(1)
    return most.masked_fill(kept.amax(1, keepdim=True) == 0, 0.0)


def _cls(states: States, kept: Mask, places: Mask) -> Pooled:
    return _at(states, kept.to(torch.int8).argmax(1))


def _last(states: States, kept: Mask, places: Mask) -> Pooled:
    return _at(states, (kept * places).argmax(1))


def _at(states: States, tokens: Int64[Tensor, " texts"]) -> Pooled:
    return states[torch.arange(len(states), device=states.device), tokens].to(torch.float32)


# Functions of the states, the tokens that are pooled, and the number of each token in its text, counted from 1.
MODES: dict[str, Callable[[States, Mask, Mask], Pooled]] = {
    "mean": _mean,
    "cls": _cls,
    "last": _last,
    "max": _max,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
}
