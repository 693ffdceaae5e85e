"""Attention, dropout and GELU of an encoder that trains on a CPU; `train_on_cpu` replaces those of its model.

Attention (Vaswani et al. 2017, section 3.2.1) is registered with transformers by name. The backward pass of torch's
fused attention takes a third of a step on a CPU, and its dropout draws serially. This attention is two products and a
softmax, like transformers' `eager`, with two differences. It stores the probabilities once, without a copy after
dropout, because the backward pass makes this copy again from the key. And autocast does not change it: in bfloat16 all
of its arithmetic is bfloat16. For MiniLM with texts of 128 tokens and dropout 0.1 (forward without gradient, forward
with gradient, backward) it processes 1.5 times the texts per second of `eager` with torch's dropout in bf16. Texts of
more than `LONGEST` tokens use torch's fused attention, which does not store their scores. In fp32 the kernel of
`models.cpu.attention` computes it.

torch's GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415) takes 7 % of a training step of MiniLM in fp32. This one
computes the error function with errors below 3e-7 (`vectors.gelu`), and overwrites its input where no gradient needs
it. Other types than float32, and tensors whose size is no multiple of 16, use torch's.
"""

from __future__ import annotations

from typing import Any

import numba
import torch
from torch import Tensor, nn

from raytriever.models.cpu.attention import attend, supports
from raytriever.models.cpu.dropout import Dropout, draw_key, drop, drops_by_key
from raytriever.models.retriever import Retriever
from raytriever.vectors import LANES, gelu, gelu_gradients, in_threads

NAME = "raytriever_training"
# Models with plain attention: no position bias, no soft cap, no sinks, as many keys as queries.
MODELS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "electra"})
# Largest number of tokens whose scores are stored. For 8,192 tokens the scores of 12 heads take 3 GB in every layer.
# torch's fused attention stores none; with 1,024 tokens and without dropout, it makes a layer 1.2 to 2 times as fast.
LONGEST = 512


def train_on_cpu(retriever: Retriever) -> None:
    """Replace attention, dropout and GELU of every tower by those that are fast on a CPU; parameters are kept."""
    longest = max(retriever.description.query_length, retriever.description.passage_length)
    for tower in {retriever.query, retriever.passage}:
        use_cpu_attention(tower.backbone, longest)
    for name, module in list(retriever.named_modules()):
        if type(module) is nn.Dropout and module.p:
            retriever.set_submodule(name, Dropout(module.p).train(module.training))
        # Of the feed-forward layers of BERT and its like, in the registry of transformers.
        elif name.endswith(".intermediate_act_fn") and getattr(module, "act", None) is nn.functional.gelu:
            retriever.set_submodule(name, Gelu())


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


_BLOCK = 1 << 10  # numbers, of which threads take some at a time


class Gelu(nn.Module):
    """GELU after a linear layer, whose result nothing else reads."""

    def forward(self, states: Tensor) -> Tensor:
        """Apply the function to each element."""
        is_supported = states.device.type == "cpu" and states.dtype == torch.float32 and states.is_contiguous()
        if not is_supported or states.numel() % LANES or not states.numel():
            return nn.functional.gelu(states)
        if not (torch.is_grad_enabled() and states.requires_grad):
            _apply(states, states)
            return states
        activated: Tensor = _Gelu.apply(states)
        return activated


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        ctx.save_for_backward(states)
        activated = torch.empty_like(states)
        _apply(states, activated)
        return activated

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        by_states = torch.empty_like(states)
        arrays = (one.detach().reshape(-1).numpy() for one in (states, grad.contiguous(), by_states))
        in_threads(_differentiate, -(-states.numel() // _BLOCK), *arrays)
        return by_states


def _apply(states: Tensor, activated: Tensor) -> None:
    arrays = (one.detach().reshape(-1).numpy() for one in (states, activated))
    in_threads(_activate, -(-states.numel() // _BLOCK), *arrays)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _activate(first, last, values, out):  # type: ignore[no-untyped-def]
    start, end = first * _BLOCK, min(values.size, last * _BLOCK)
    gelu(values, out, start, end - start)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _differentiate(first, last, values, gradients, out):  # type: ignore[no-untyped-def]
    start, end = first * _BLOCK, min(values.size, last * _BLOCK)
    gelu_gradients(values, gradients, out, start, end - start)
