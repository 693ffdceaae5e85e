"""Attention and dropout of an encoder that trains on a CPU; `train_on_cpu` puts them in.

Attention (Vaswani et al. 2017, section 3.2.1), registered with transformers by name. The backward pass of torch's fused
attention takes a third of a step on a CPU, and its dropout draws serially. This attention is two products and a
softmax, like transformers' `eager`, with two differences. It stores the probabilities once, without a copy after
dropout, because the backward pass makes this copy again from the key. And autocast does not change it: in bfloat16 all
of its arithmetic is bfloat16. For MiniLM with texts of 128 tokens and dropout 0.1 (forward without gradient, forward
with gradient, backward) it processes 1.5 times the texts per second of `eager` with torch's dropout in bf16. Texts of
more than `LONGEST` tokens use torch's fused attention, which does not store their scores. In fp32 without dropout, the
kernel of `models.cpu_attention` computes it.

Dropout (Srivastava et al. 2014): one compiled pass that keeps no mask for the backward pass. A call draws one key from
torch's CPU generator. An element is kept or dropped by 16 of the bits that SplitMix64 (Steele, Lea & Flood 2014,
OOPSLA) computes from the key and the element's index, so the backward pass computes the same bits again. If the
generator is restored, as gradient caching and activation checkpointing do, the mask is the same. torch's own dropout on
a CPU draws from one serial generator: 8 ns per element, a third of a training step of MiniLM in bf16. This dropout
takes 0.1 to 0.3 ns on one thread. On other devices, and for types other than float32 and bfloat16, torch's own dropout
is used."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

from raytriever.models.cpu_attention import attend, supports
from raytriever.models.retriever import Retriever

NAME = "raytriever_training"
# Models with plain attention: no position bias, no soft cap, no sinks, as many keys as queries.
MODELS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "electra"})
# Largest number of tokens whose scores are stored. For 8,192 tokens the scores of 12 heads take 3 GB in every layer.
# torch's fused attention stores none; with 1,024 tokens and without dropout, it makes a layer 1.2 to 2 times as fast.
LONGEST = 512


def train_on_cpu(retriever: Retriever) -> None:
    """Replace attention and dropout of every tower by those that are fast on a CPU, in place; parameters are kept."""
    longest = max(retriever.description.query_length, retriever.description.passage_length)
    for tower in {retriever.query, retriever.passage}:
        use_cpu_attention(tower.backbone, longest)
    for name, module in list(retriever.named_modules()):
        if type(module) is nn.Dropout:
            retriever.set_submodule(name, Dropout(module.p).train(module.training))


def use_cpu_attention(backbone: nn.Module, longest: int) -> None:
    """Use this attention in a transformers model that supports it.

    Others use `eager`, or `sdpa` if their texts may have more than `LONGEST` tokens.

    Args:
        backbone: a transformers model.
        longest: largest number of tokens of a text.
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
        dropout: dropout probability of the weights.

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
    if not active and query.dtype == torch.float32 and supports(query, key, value):
        return attend(query, key, value, attention_mask, scaling), None
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


# -------------------------------------------------------------------------------------------------------------- dropout


BLOCK = 1024
WORDS = BLOCK // 4  # a random word serves four elements
LEVELS = 1 << 16  # probabilities are multiples of 1 / LEVELS


@numba.njit(cache=True, error_model="numpy", nogil=True)
def drop_float32(values, dropped, key, threshold, scale):  # type: ignore[no-untyped-def]
    """Write `values * scale`, or 0 where 16 random bits are below `threshold`; `dropped` may be `values`."""
    words = np.empty(WORDS, np.uint64)
    random = words.view(np.uint16)
    factors = np.empty(BLOCK, np.float32)
    for block in range((values.size + BLOCK - 1) // BLOCK):
        _draw(words, key, block)
        start, end = block * BLOCK, min(values.size, (block + 1) * BLOCK)
        # Two loops, because the compiler vectorises each of them but not one combined loop.
        for i in range(end - start):
            factors[i] = scale if random[i] >= threshold else np.float32(0)
        for i in range(end - start):
            dropped[start + i] = values[start + i] * factors[i]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def drop_bfloat16(values, dropped, key, threshold, scale):  # type: ignore[no-untyped-def]
    """Drop elements of bfloat16, viewed as uint16; products are in float32, rounded to nearest, ties to even."""
    words = np.empty(WORDS, np.uint64)
    random = words.view(np.uint16)
    wide = np.empty(BLOCK, np.uint32)
    product = wide.view(np.float32)
    for block in range((values.size + BLOCK - 1) // BLOCK):
        _draw(words, key, block)
        start, end = block * BLOCK, min(values.size, (block + 1) * BLOCK)
        for i in range(end - start):
            wide[i] = np.uint32(values[start + i]) << np.uint32(16)
        for i in range(end - start):
            product[i] *= scale
        for i in range(end - start):
            odd = (wide[i] >> np.uint32(16)) & np.uint32(1)
            rounded = (wide[i] + np.uint32(0x7FFF) + odd) >> np.uint32(16)
            dropped[start + i] = np.uint16(rounded) if random[i] >= threshold else np.uint16(0)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _draw(words, key, block):  # type: ignore[no-untyped-def]
    """Compute the random words of a block."""
    for i in range(words.size):
        word = key + np.uint64(block * words.size + i) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[i] = word ^ (word >> np.uint64(31))


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with probabilities in steps of 2^-16; kept elements are scaled so that means stay the same."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements while training."""
        return dropout(input, self.p, self.training)


def dropout(values: Tensor, probability: float, training: bool = True) -> Tensor:
    """Set elements to 0 with a probability, and divide the others by the probability of being kept.

    Args:
        values: tensor of any shape.
        probability: dropout probability from 0 to 1, rounded to a multiple of 2^-16 on a CPU.
        training: drop elements; if false, the values are returned unchanged.
    """
    if not training or probability == 0:
        return values
    if not drops_by_key(values):
        return nn.functional.dropout(values, probability, training)
    dropped: Tensor = _Drop.apply(values, probability, draw_key())
    return dropped


def drops_by_key(values: Tensor) -> bool:
    """Return true if `drop` supports the device and the type of a tensor."""
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.bfloat16)


def draw_key() -> int:
    """Draw 63 bits from torch's CPU generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def drop(values: Tensor, probability: float, key: int, in_place: bool = False) -> Tensor:
    """Drop elements by a key and scale the others, without autograd; the mask is the same for any type.

    Args:
        values: float32 or bfloat16 tensor on a CPU.
        probability: dropout probability from 0 to 1.
        key: key of the mask; see `draw_key`.
        in_place: overwrite `values` if it is contiguous.
    """
    threshold = round(probability * LEVELS)
    if threshold == LEVELS:
        return torch.zeros_like(values)
    values = values.contiguous()
    dropped = values if in_place else torch.empty_like(values)
    if values.dtype == torch.bfloat16:
        compiled, views = drop_bfloat16, (values.view(torch.uint16), dropped.view(torch.uint16))
    else:
        compiled, views = drop_float32, (values, dropped)
    source, target = (one.detach().numpy().reshape(-1) for one in views)
    compiled(source, target, np.uint64(key), np.uint16(threshold), np.float32(LEVELS / (LEVELS - threshold)))
    return dropped


class _Drop(torch.autograd.Function):
    """Dropout whose backward pass applies the same mask."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float, key: int) -> Tensor:
        ctx.probability, ctx.key = probability, key
        return drop(values, probability, key)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return drop(grad, ctx.probability, ctx.key), None, None
