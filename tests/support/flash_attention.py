"""Flash attention of packed texts on the CPU, with the signature of torch's operators for CUDA.

Everything is computed in float32, on a matrix of scores for each text, and rounded once at the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
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
    mixed, sums = torch.empty_like(query), query.new_empty(query.shape[1], len(query), dtype=torch.float32)
    for text in _texts(starts):
        weights, sums[:, text] = _weights(query[text], key[text], dropout, is_causal, options)
        mixed[text] = (weights @ _heads(value[text], query)).transpose(0, 1).to(query.dtype)
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
    gradients = [torch.empty_like(one) for one in (query, key, value)]
    for text in _texts(starts):
        queries, keys, values = (_heads(one[text], query) for one in (query, key, value))
        weights, _ = _weights(query[text], key[text], dropout, is_causal, options)
        by_mixed = grad[text].float().transpose(0, 1)
        by_weight = by_mixed @ values.mT
        by_score = weights * (by_weight - (by_weight * weights).sum(-1, keepdim=True)) * _scale(query, options)
        # Several heads of queries share one of keys.
        for whole, one in zip(gradients, (by_score @ keys, by_score.mT @ queries, weights.mT @ by_mixed), strict=True):
            whole[text] = one.unflatten(0, (whole.shape[1], -1)).sum(1).transpose(0, 1).to(whole.dtype)
    return tuple(gradients)


def _texts(starts: Tensor) -> Iterator[slice]:
    return (slice(first, last) for first, last in pairwise(starts.tolist()))


def _weights(
    query: Tensor, key: Tensor, dropout: float, is_causal: bool, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return one text's weights, `[heads, tokens, tokens]`, and the logarithms of their sums, `[heads, tokens]`."""
    if dropout:
        raise NotImplementedError("dropout of attention")
    places = torch.arange(len(query))
    distance = places[:, None] - places
    left, right = (options.get(f"window_size_{side}") for side in ("left", "right"))
    scores = _heads(query, query) @ _heads(key, query).mT * _scale(query, options)
    if left is not None and left >= 0:
        scores = scores.masked_fill(distance > left, -torch.inf)
    if is_causal or (right is not None and right >= 0):
        scores = scores.masked_fill(distance < -(0 if is_causal else right or 0), -torch.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


def _heads(states: Tensor, query: Tensor) -> Tensor:
    """Return states as `[heads of queries, tokens, width]` in float32."""
    return states.float().transpose(0, 1).repeat_interleave(query.shape[1] // states.shape[1], 0)


def _scale(query: Tensor, options: dict[str, Any]) -> float:
    scale = options.get("scale")
    return query.shape[-1] ** -0.5 if scale is None else float(scale)
