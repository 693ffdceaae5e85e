"""Flash attention of packed texts on the CPU, with the signature of torch's operators for CUDA.

Everything is computed in float32 on one matrix of scores with all tokens, rounded once at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

OPERATORS = frozenset({"_flash_attention_forward", "_flash_attention_backward"})


def compute(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Return the result of an operator of `OPERATORS`, from tensors on the CPU."""
    return _forward(*args, **kwargs) if name == "_flash_attention_forward" else _backward(*args, **kwargs)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    starts_of_keys: Tensor,
    longest: int,
    longest_of_keys: int,
    dropout: float,
    is_causal: bool,
    debug: bool,
    **options: Any,
) -> tuple[Tensor, ...]:
    weights, sums, values = _weights(query, key, value, starts, dropout, is_causal, options)
    mixed = (weights @ values).transpose(0, 1).to(query.dtype).contiguous()
    state = torch.zeros(2, dtype=torch.int64)
    return mixed, sums, state, state.clone(), query.new_empty(0)


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixed: Tensor,
    sums: Tensor,
    starts: Tensor,
    starts_of_keys: Tensor,
    longest: int,
    longest_of_keys: int,
    dropout: float,
    is_causal: bool,
    seed: Tensor,
    offset: Tensor,
    **options: Any,
) -> tuple[Tensor, ...]:
    weights, _, values = _weights(query, key, value, starts, dropout, is_causal, options)
    scale, by_mixed = _scale(query, options), grad.float().transpose(0, 1)
    by_weight = by_mixed @ values.mT
    by_score = weights * (by_weight - (by_weight * weights).sum(-1, keepdim=True)) * scale
    gradients = by_score @ _heads(key, query), by_score.mT @ _heads(query, query), weights.mT @ by_mixed
    # Several heads of queries share one of keys.
    return tuple(
        one.unflatten(0, (given.shape[1], -1)).sum(1).transpose(0, 1).to(given.dtype).contiguous()
        for one, given in zip(gradients, (query, key, value), strict=True)
    )


def _weights(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, dropout: float, is_causal: bool, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    if dropout:
        raise NotImplementedError("dropout of attention")
    places = torch.arange(len(query))
    text = torch.searchsorted(starts.long(), places, right=True)
    distance = places[:, None] - places
    left, right = (options.get(f"window_size_{side}") for side in ("left", "right"))
    seen = text[:, None] == text
    if left is not None and left >= 0:
        seen &= distance <= left
    if is_causal or (right is not None and right >= 0):
        seen &= distance >= -(0 if is_causal else right or 0)
    scores = _heads(query, query) @ _heads(key, query).mT * _scale(query, options)
    scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1), scores.logsumexp(-1), _heads(value, query)


def _heads(states: Tensor, query: Tensor) -> Tensor:
    """Return states as `[heads of queries, tokens, width]` in float32."""
    return states.float().transpose(0, 1).repeat_interleave(query.shape[1] // states.shape[1], 0)


def _scale(query: Tensor, options: dict[str, Any]) -> float:
    scale = options.get("scale")
    return query.shape[-1] ** -0.5 if scale is None else float(scale)
