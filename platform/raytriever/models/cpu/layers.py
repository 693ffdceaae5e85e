"""Attention and dropout of an encoder that trains on a CPU; `train_on_cpu` replaces those of its model.

Attention (Vaswani et al. 2017, section 3.2.1) is registered with transformers by name. The backward pass of torch's
fused attention takes a third of a step on a CPU, and its dropout draws serially. This attention is two products and a
softmax, like transformers' `eager`, with two differences. It stores the probabilities once, without a copy after
dropout, because the backward pass makes this copy again from the key. And autocast does not change it: in bfloat16 all
of its arithmetic is bfloat16. For MiniLM with texts of 128 tokens and dropout 0.1 (forward without gradient, forward
with gradient, backward) it processes 1.5 times the texts per second of `eager` with torch's dropout in bf16. Texts of
more than `LONGEST` tokens use torch's fused attention, which does not store their scores. In fp32 the kernel of
`models.cpu.attention` computes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raytriever.models.cpu.attention import attend, supports
from raytriever.models.cpu.dropout import Dropout, draw_key, drop, drops_by_key
from raytriever.models.retriever import Retriever

NAME = "raytriever_training"
# Models with plain attention: no position bias, no soft cap, no sinks, as many keys as queries.
MODELS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "electra"})
# Largest number of tokens whose scores are stored. For 8,192 tokens the scores of 12 heads take 3 GB in every layer.
# torch's fused attention stores none; with 1,024 tokens and without dropout, it makes a layer 1.2 to 2 times as fast.
LONGEST = 512


def train_on_cpu(retriever: Retriever) -> None:
    """Replace attention and dropout of every tower by those that are fast on a CPU; parameters are kept."""
    longest = max(retriever.description.query_length, retriever.description.passage_length)
    for tower in {retriever.query, retriever.passage}:
        use_cpu_attention(tower.backbone, longest)
    for name, module in list(retriever.named_modules()):
        if type(module) is nn.Dropout and module.p:
            retriever.set_submodule(name, Dropout(module.p).train(module.training))


def use_cpu_attention(backbone: nn.Module, longest: int) -> None:
    """Use this attention in a transformers model that supports it.

    Others use `eager`, or `sdpa` if their texts may have more than `LONGEST` tokens.
    """
    is_supported = getattr(backbone.config, "model_type", "") in MODELS
    if is_supported:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, eager_mask)
    other = "sdpa" if longest > LONGEST and getattr(backbone, "_supports_sdpa", False) else "eager"
    backbone.set_attn_implementation(NAME if is_supported else other)  # type: ignore[operator]


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
    """Compute attention; an attention function of transformers.

    Args:
        module: layer of the attention; dropout is applied in its training mode only.
        query, key, value: states, `[texts, heads, tokens, width]`.
        attention_mask: mask that is added to the scores, `[texts, 1, tokens, tokens]`, or None.
        scaling: factor of the scores; 1 / sqrt(width) by default.

    Returns:
        Mixed values, `[texts, tokens, heads, width]`, and None in place of the weights.
    """
    active = dropout if module.training else 0.0
    if query.shape[2] > LONGEST:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        mixed, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=active, scaling=scaling, is_causal=False
        )
        return mixed, None
    # In bf16 the backward pass of two products is faster, and both passes of gradient caching round alike.
    if active < 1 and query.dtype == torch.float32 and supports(query, key, value):
        return attend(query, key, value, attention_mask, scaling, active), None
    # Autocast would convert weights and mask to float32 and back; torch's softmax already sums in float32.
    with torch.autocast(query.device.type, enabled=False):
        # Scale the queries, not the scores, because there are fewer of them.
        scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
        if attention_mask is not None:
            # The lowest float32 is minus infinity in bfloat16, which would give NaN in a row without any token.
            scores += attention_mask.to(scores.dtype).clamp(min=torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if active and drops_by_key(weights):
            mixed = _DroppedMix.apply(weights, value, active, draw_key())
        else:
            mixed = nn.functional.dropout(weights, active) @ value
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
