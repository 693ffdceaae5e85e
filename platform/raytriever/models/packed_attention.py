"""Attention over packed texts, registered with transformers by name: a token attends to tokens of its own text only.

On CUDA in bfloat16 or float16 one kernel of flash attention (Dao 2023, arXiv:2307.08691) computes all texts of a layer.
Its forward pass does not split the keys of a text over blocks, so the result of a text does not depend on the other
texts. Its backward pass sums the gradients of queries in an order that is fixed only under
`torch.use_deterministic_algorithms`, so this setting is on during that kernel. torch's `varlen_attn` calls the same
kernel, but has no dropout. In float32 and on a CPU, torch's fused attention computes one text after another.

Padded batches in the same model use torch's fused attention with an explicit mask. transformers would read the mask
first to see whether it can be left out, and a CPU would wait for the GPU there. The backward pass of that kernel splits
the keys of texts above 256 tokens over blocks, and adds up in any order, unless deterministic algorithms are selected.
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
# Models whose attention is a softmax of scaled products within a window; their other layers see one token at a time.
FROM_ZERO = frozenset({
    "albert", "bert", "distilbert", "electra", "ernie", "eurobert", "gemma", "gemma3_text", "granite", "llama",
    "mistral", "modernbert", "nomic_bert", "phi3", "qwen2", "qwen3",
})  # fmt: skip
# The same, with positions that begin after the padding token's.
AFTER_PADDING = frozenset({"camembert", "roberta", "xlm-roberta"})
OBSTACLES = dict.fromkeys(("mpnet", "t5", "mt5", "umt5", "deberta", "deberta-v2"), "its attention has a position bias")
# Rows of an embedding up to which its gradient is a product with marks, and tokens that are marked at a time (268 MB).
FEW_ROWS, MARKED = 1_024, 1 << 16
WIDTHS = range(8, 257, 8)  # components of a head that flash attention supports


def packing_obstacle(backbone: nn.Module) -> str | None:
    """Return why a transformers model cannot encode packed texts; None if it can."""
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
    """Use this attention in a transformers model that can encode packed texts, in place."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _padding_mask)
    backbone.set_attn_implementation(NAME)


def packed_states(backbone: Any, part: TokenBatch) -> Tensor:
    """Return the last states of the tokens of a packed batch, `[tokens, width]`."""
    if backbone.config._attn_implementation != NAME:
        use_packed_attention(backbone)
    output = backbone(
        input_ids=part["input_ids"],
        position_ids=part["position_ids"],
        # transformers passes a mask of four dimensions to the attention unchanged, and makes none of its own.
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
    """Compute attention; an attention function of transformers.

    Args:
        module: layer of the attention; dropout is applied in its training mode only.
        query, key, value: states, `[1, heads, tokens, width]`; fewer heads of keys and values serve several queries.
        attention_mask: `starts` of packed texts, `[1, 1, 1, texts + 1]`; a mask of padding if `max_length_q` is None.
        scaling: factor of the scores; 1 / sqrt(width) by default.
        sliding_window: distance from which on tokens do not attend to each other; None for no limit.
        max_length_q: tokens of the longest text of a packed batch; None for a padded batch.

    Returns:
        Mixed values, `[1, tokens, heads, width]`, and None in place of the weights.
    """
    dropout = dropout if module.training else 0.0
    if max_length_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        states = (query, key, value)
        repeats = query.is_cuda and query.requires_grad
        mixed, _ = sdpa_attention_forward(
            module,
            *(_DeterministicUntil.apply(*states) if repeats else states),
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=False,
            **others,
        )
        return (_DeterministicFrom.apply(mixed) if repeats else mixed), None
    # Norms of queries and keys have float32 results under autocast, as transformers' rotary positions may have.
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    states = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    assert attention_mask is not None
    starts, window = attention_mask.flatten(), _window(module, sliding_window)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] in WIDTHS:
        mixed = _FlashAttention.apply(*states, starts, max_length_q, window, scaling, dropout)
    else:
        mixed = _text_by_text(*states, starts, window, scaling, dropout)
    return mixed[None], None


def _padding_mask(**arguments: Any) -> Tensor | None:
    """Return the mask of a padded batch; transformers' own function without a look at its values."""
    from transformers.masking_utils import sdpa_mask

    without = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**{**arguments, **without})


def _window(module: Any, size: int | None) -> tuple[int, int]:
    """Return the number of earlier and of later tokens that a token attends to; -1 for all."""
    config = module.config
    is_set = getattr(config, "is_causal", None)
    is_causal = module.is_causal if is_set is None else is_set
    if size is None:
        return -1, 0 if is_causal else -1
    # A decoder whose tokens attend to later tokens only because of its configuration includes the distance itself.
    reach = size if module.is_causal and not is_causal else size - 1
    return reach, 0 if is_causal else reach


class _FlashAttention(torch.autograd.Function):
    """Flash attention of packed texts, `[tokens, heads, width]`, with the same bits at every call."""

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
    """Embedding whose gradient has the same bits at every call.

    From torch 2.11 on, CUDA adds the gradients of few rows, such as those of positions, in any order (pytorch#172454).
    With torch's deterministic form a step of MiniLM took 56 ms, where it had taken 35 without it.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of token numbers, as `nn.Embedding` does."""
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
            total.index_put_((numbers,), grad, accumulate=True)  # sorts, so that the order is fixed
        else:
            # Sorted, the tokens of one row would be added one after another.
            names = torch.arange(ctx.rows, device=grad.device)[:, None]
            with _exact_products():
                for some, part in zip(numbers.split(MARKED), grad.split(MARKED), strict=True):
                    total.addmm_((names == some).to(grad.dtype), part)
        if ctx.padding >= 0:
            total[ctx.padding] = 0
        return total, None, None


@contextmanager
def _exact_products() -> Iterator[None]:
    """Multiply float32 without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def use_repeatable_embeddings(backbone: nn.Module) -> None:
    """Replace the plain embeddings of a model."""
    for module in backbone.modules():
        if type(module) is not nn.Embedding:
            continue
        if not module.sparse and not module.scale_grad_by_freq and module.max_norm is None:
            module.__class__ = RepeatableEmbedding


class _DeterministicFrom(torch.autograd.Function):
    """Identity; in the backward pass what comes next is deterministic, until `_DeterministicUntil`."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor) -> Tensor:
        while _selections:  # of a backward pass that ended with an error in between
            _selections.pop().__exit__(None, None, None)
        return mixed.view_as(mixed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _selections.append(_deterministic())
        _selections[-1].__enter__()
        return grad


class _DeterministicUntil(torch.autograd.Function):
    """Identity of the inputs of a layer whose output is that of `_DeterministicFrom`."""

    @staticmethod
    def forward(ctx: Any, *states: Tensor) -> tuple[Tensor, ...]:
        return tuple(one.view_as(one) for one in states)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        _selections.pop().__exit__(None, None, None)
        return grads


# One of each layer whose backward pass is running: one, because a GPU's backward pass runs in one thread.
_selections: list[Any] = []


@contextmanager
def _deterministic() -> Iterator[None]:
    """Select deterministic algorithms, for code that fills all memory that it allocates.

    `torch.use_deterministic_algorithms` would first import torch's compiler: 800 modules, a second or more. A process
    that has loaded a model of transformers has imported it already.
    """
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
    """Return the attention of packed texts, `[tokens, heads, width]`, by torch's fused attention for each text."""
    mixed = []
    for start, end in pairwise(starts.tolist()):
        q, k, v = (one[start:end].transpose(0, 1)[None] for one in (query, key, value))
        mixed.append(
            nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=None if window in ((-1, -1), (-1, 0)) else _window_mask(end - start, window, query.device),
                dropout_p=dropout,
                is_causal=window == (-1, 0),
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )[0].transpose(0, 1)
        )
    return torch.cat(mixed)


def _window_mask(length: int, window: tuple[int, int], device: torch.device) -> Tensor:
    places = torch.arange(length, device=device)
    distance = places[:, None] - places
    return (distance <= window[0]) & (distance >= -window[1])
