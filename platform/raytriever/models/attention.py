"""Attention as it is trained on a CPU (Vaswani et al. 2017, section 3.2.1), registered with transformers by name.

The backward of torch's fused attention takes a third of a step on a CPU, and its dropout draws serially. This one
multiplies, takes the softmax and multiplies again, like transformers' `eager`; it differs in what it keeps: the
probabilities once, and not their dropped copy, which the backward pass makes again from the key; and in what autocast
does to it, which is nothing: in bfloat16 all of it is bfloat16. MiniLM, texts of 128 tokens, dropout 0.1, forward
without gradient, then with, then backward: 1.5 times the texts a second of `eager` with torch's dropout in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raytriever.models.dropout import draw_key, drop, drops_by_key

NAME = "raytriever_cpu"
# Models whose attention is no more than this: no position bias, no soft cap, no sinks, as many keys as queries.
MODELS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "electra"})


def use_cpu_attention(backbone: nn.Module) -> None:
    """Give a transformers model this attention where it fits, `eager` elsewhere."""
    fits = getattr(backbone.config, "model_type", "") in MODELS
    if fits:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, eager_mask)
    backbone.set_attn_implementation(NAME if fits else "eager")  # type: ignore[operator]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers asks of an attention.

    Args:
        module: the layer; nothing is dropped unless it trains.
        query, key, value: `[texts, heads, tokens, width]`.
        attention_mask: added to the scores, `[texts, 1, tokens, tokens]`, or None.
        scaling: of the scores; 1 / sqrt(width) by default.
        dropout: probability of the weights.

    Returns:
        `[texts, tokens, heads, width]`, and no weights.
    """
    # Autocast would carry weights and mask to float32 and back; torch's softmax adds up in float32 as it is.
    with torch.autocast(query.device.type, enabled=False):
        # The queries are scaled, not the scores: there are fewer of them.
        scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
        if attention_mask is not None:
            # The least float32 is minus infinity in bfloat16, of which a row without any token would make NaN.
            scores += attention_mask.to(scores.dtype).clamp(min=torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if dropout and module.training and drops_by_key(weights):
            mixed = _DroppedMix.apply(weights, value, dropout, draw_key())
        else:
            mixed = nn.functional.dropout(weights, dropout, module.training) @ value
    return mixed.transpose(1, 2).contiguous(), None


class _DroppedMix(torch.autograd.Function):
    """dropout(weights) @ values."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, probability: float, key: int) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.probability, ctx.key = probability, key
        return drop(weights, probability, key, in_place=not any(ctx.needs_input_grad)) @ values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, values = ctx.saved_tensors
        by_values = drop(weights, ctx.probability, ctx.key).transpose(2, 3) @ grad
        by_weights = drop(grad @ values.transpose(2, 3), ctx.probability, ctx.key, in_place=True)
        return by_weights, by_values, None, None
