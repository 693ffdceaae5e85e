"""Attention over packed texts, registered with transformers by name. A token attends only to tokens of its own text.

On CUDA in bfloat16 or float16, one flash-attention kernel (Dao 2023, arXiv:2307.08691) computes all texts of a layer.
Its forward pass does not split the keys of a text over blocks, so the result of a text does not depend on the other
texts. Its backward pass sums the gradients of queries in a fixed order only with deterministic algorithms
(`torch.use_deterministic_algorithms`), so they are on during that kernel. torch's `varlen_attn` calls the same kernel,
but has no dropout. In float32 and on a CPU, torch's fused attention computes one text after another.

Padded batches of the same model use torch's fused attention with an explicit mask. Without it, transformers would read
the mask to see whether it is needed, and the CPU would wait for the GPU. The backward pass of this kernel splits the
keys of texts with more than 256 tokens over blocks. Without deterministic algorithms, it sums them in no fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from raytriever.models.packing import TokenBatch

NAME = "raytriever_packed"
# Models whose attention is a softmax of scaled products, perhaps within a window. Their other layers treat each token
# on its own.
FROM_ZERO = frozenset({
    "albert", "bert", "distilbert", "electra", "ernie", "eurobert", "gemma", "gemma3_text", "granite", "llama",
    "mistral", "modernbert", "nomic_bert", "phi3", "qwen2", "qwen3",
})  # fmt: skip
# Models of the same kind whose positions begin after the position of the padding token.
AFTER_PADDING = frozenset({"camembert", "roberta", "xlm-roberta"})
OBSTACLES = dict.fromkeys(("mpnet", "t5", "mt5", "umt5", "deberta", "deberta-v2"), "its attention has a position bias")
# For an embedding table of at most `FEW_ROWS` rows, the gradient is a product with one-hot vectors. These are made for
# `MARKED` tokens at a time (268 MB).
FEW_ROWS, MARKED = 1_024, 1 << 16
DIMS = range(8, 257, 8)  # head dimensions that flash attention supports


def packing_obstacle(backbone: nn.Module) -> str | None:
    """Return why a transformers model cannot encode packed texts. Return None if it can."""
    config: Any = backbone.config
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "its attention has a soft cap"
    if config.model_type in FROM_ZERO | AFTER_PADDING:
        return None
    return OBSTACLES.get(config.model_type, f"packed texts are not tested in a model of type {config.model_type}")


def first_position(backbone: nn.Module) -> int:
    """Return the position of the first token of a text."""
    config: Any = backbone.config
    return config.pad_token_id + 1 if config.model_type in AFTER_PADDING else 0


def use_packed_attention(backbone: Any) -> None:
    """Make a transformers model use the attention of this module, in place. The model must support packed texts."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _padding_mask)
    backbone.set_attn_implementation(NAME)


def packed_states(backbone: Any, part: TokenBatch) -> Tensor:
    """Return the last hidden state of each token of a packed batch, `[tokens, dim]`."""
    if backbone.config._attn_implementation != NAME:
        use_packed_attention(backbone)
    output = backbone(
        input_ids=part["input_ids"],
        position_ids=part["position_ids"],
        # transformers makes no mask itself if it gets a four-dimensional one, and passes it to the attention unchanged.
        attention_mask=part["starts"].view(1, 1, 1, -1),
        max_length_q=int(part["lengths"].max()),
    )
    states: Tensor = output.last_hidden_state[0]
    return states


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    max_length_q: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers.

    Args:
        module: attention layer. Dropout is applied only in its training mode.
        query, key, value: states, `[1, heads, tokens, dim]`. Key and value may have fewer heads (grouped heads).
        attention_mask: `starts` of packed texts, `[1, 1, 1, texts + 1]`; the padding mask if `max_length_q` is None.
        scaling: factor of the scores, by default 1 / sqrt(dimension).
        sliding_window: tokens at this distance or farther do not attend to each other; None for no limit.
        max_length_q: number of tokens of the longest text of a packed batch; None for a padded batch.

    Returns:
        Output, `[1, tokens, heads, dim]`, and None in place of the attention weights.
    """
    dropout = dropout if module.training else 0.0
    if max_length_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        states = (query, key, value)
        repeats = query.is_cuda and query.requires_grad
        inputs = _DeterministicUntil.apply(*states) if repeats else states
        options = {"dropout": dropout, "scaling": scaling, "is_causal": False, **others}
        mixed, _ = sdpa_attention_forward(module, *inputs, attention_mask, **options)
        return (_DeterministicFrom.apply(mixed) if repeats else mixed), None
    # Under autocast, normalized queries and keys, and rotary positions, may be float32. Convert all states to one type.
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    states = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    assert attention_mask is not None
    starts, window = attention_mask.flatten(), _window(module, sliding_window)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] in DIMS:
        mixed = _FlashAttention.apply(*states, starts, max_length_q, window, scaling, dropout)
    else:
        mixed = _text_by_text(*states, starts, window, scaling, dropout)
    return mixed[None], None


def _padding_mask(**arguments: Any) -> Tensor | None:
    """Return the mask of a padded batch as transformers does, but without reading its values."""
    from transformers.masking_utils import sdpa_mask

    without = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**{**arguments, **without})


def _window(module: Any, size: int | None) -> tuple[int, int]:
    """Return how many earlier and how many later tokens a token attends to; -1 means all."""
    config = module.config
    is_set = getattr(config, "is_causal", None)
    is_causal = module.is_causal if is_set is None else is_set
    if size is None:
        return -1, 0 if is_causal else -1
    # transformers' window excludes its end, except in a decoder that attends to later tokens by its configuration.
    reach = size if module.is_causal and not is_causal else size - 1
    return reach, 0 if is_causal else reach


class _FlashAttention(torch.autograd.Function):
    """Flash attention of packed texts, `[tokens, heads, dim]`. Every call gives the same bits."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        starts: Tensor,
        longest: int,
        window: tuple[int, int],
        scaling: float | None,
        dropout: float,
    ) -> Tensor:
        ctx.settings = dropout, window == (-1, 0)
        ctx.options = {"scale": scaling, "window_size_left": window[0], "window_size_right": window[1]}
        ctx.longest = longest
        mixed, sums, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            query, key, value, starts, starts, longest, longest, *ctx.settings, False, **ctx.options
        )
        ctx.save_for_backward(query, key, value, mixed, sums, starts, seed, offset)
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, sums, starts, seed, offset = ctx.saved_tensors
        lengths = starts, starts, ctx.longest, ctx.longest
        with _deterministic():
            gradients = torch.ops.aten._flash_attention_backward(
                grad, query, key, value, mixed, sums, *lengths, *ctx.settings, seed, offset, **ctx.options
            )
        return *gradients, None, None, None, None, None


class RepeatableEmbedding(nn.Embedding):
    """Embedding whose gradient is the same, bit by bit, at every call.

    From torch 2.11 on, CUDA sums the gradients of small tables, such as positions, in no fixed order (pytorch#172454).
    torch's deterministic algorithm is slow: with it, a step of MiniLM took 56 ms instead of 35."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the embedding of each token id, as `nn.Embedding` does."""
        if self.padding_idx is None:
            return _Rows.apply(self.weight, input, -1)
        return _Rows.apply(self.weight, input, self.padding_idx)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, numbers: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.rows, ctx.padding = len(weight), padding
        return nn.functional.embedding(numbers, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        numbers, grad = ctx.saved_tensors[0].flatten(), grad.flatten(0, -2)
        total = grad.new_zeros(ctx.rows, grad.shape[1])
        if ctx.rows > FEW_ROWS:
            total.index_put_((numbers,), grad, accumulate=True)  # this sorts the rows, so the order of the sum is fixed
        else:
            # In a small table, many tokens share a row. `index_put_` would add their gradients one after another.
            names = torch.arange(ctx.rows, device=grad.device)[:, None]
            with _exact_products():
                for some, part in zip(numbers.split(MARKED), grad.split(MARKED), strict=True):
                    total.addmm_((names == some).to(grad.dtype), part)
        if ctx.padding >= 0:
            total[ctx.padding] = 0
        return total, None, None


@contextmanager
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def use_repeatable_embeddings(backbone: nn.Module) -> None:
    """Convert the plain embeddings of a model to `RepeatableEmbedding`, in place."""
    for module in backbone.modules():
        if type(module) is not nn.Embedding:
            continue
        if not module.sparse and not module.scale_grad_by_freq and module.max_norm is None:
            module.__class__ = RepeatableEmbedding


class _DeterministicFrom(torch.autograd.Function):
    """Identity. Its backward pass turns on deterministic algorithms; that of `_DeterministicUntil` ends this."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor) -> Tensor:
        while _selections:  # a backward pass that ended with an error has left its context open
            _selections.pop().__exit__(None, None, None)
        return mixed.view_as(mixed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _selections.append(_deterministic())
        _selections[-1].__enter__()
        return grad


class _DeterministicUntil(torch.autograd.Function):
    """Identity of a layer's inputs. Its backward pass ends what `_DeterministicFrom` turned on."""

    @staticmethod
    def forward(ctx: Any, *states: Tensor) -> tuple[Tensor, ...]:
        return tuple(state.view_as(state) for state in states)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        _selections.pop().__exit__(None, None, None)
        return grads


# Open contexts of `_deterministic`: at most one, because the backward pass of a GPU runs in one thread.
_selections: list[Any] = []


@contextmanager
def _deterministic() -> Iterator[None]:
    """Turn on deterministic algorithms in a block. Its code must fill all memory that it allocates.

    `torch.use_deterministic_algorithms` is not called, because it may import torch's compiler first (800 modules, a
    second or more) if no model of transformers has been loaded."""
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(enabled, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def _text_by_text(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    window: tuple[int, int],
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """Return the attention of packed texts, `[tokens, heads, dim]`, by torch's fused attention for each text."""
    mixed = []
    has_window, is_causal, is_grouped = window[0] != -1, window == (-1, 0), query.shape[1] != key.shape[1]
    for start, end in pairwise(starts.tolist()):
        q, k, v = (states[start:end].transpose(0, 1)[None] for states in (query, key, value))
        mask = _window_mask(end - start, window, query.device) if has_window else None
        one_text = nn.functional.scaled_dot_product_attention(
            q, k, v, mask, dropout, is_causal, scale=scaling, enable_gqa=is_grouped
        )
        mixed.append(one_text[0].transpose(0, 1))
    return torch.cat(mixed)


def _window_mask(length: int, window: tuple[int, int], device: torch.device) -> Tensor:
    places = torch.arange(length, device=device)
    distance = places[:, None] - places
    return (distance <= window[0]) & (distance >= -window[1])
