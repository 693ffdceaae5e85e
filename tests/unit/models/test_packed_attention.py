"""Attention over packed texts: blocks of the diagonal, windows, groups of heads, dropout and repeated bits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_gpu import CUDA, simulated_gpu, values
from torch import Tensor

from raytriever.models import packed_attention
from raytriever.models.packed_attention import attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# By three products of TF32 with cut-off sums, as CUDA computes fp32, the worst distance is 1.1e-6.
FP32_ROUNDING = 1e-5
LENGTHS = (5, 70, 1, 33, 128)
HEADS, DIM = 4, 16
# Settings of a layer, and the tokens before and after a token that it attends to.
WINDOWS = {
    "whole texts": ({}, None, 200, 200),
    "causal": ({"is_causal": True}, None, 200, 0),
    "local": ({}, 17, 16, 16),
    "local and causal": ({"is_causal": True}, 16, 15, 0),
    "encoder made causal": ({"config": SimpleNamespace(is_causal=True)}, None, 200, 0),
    "decoder made bidirectional": ({"is_causal": True, "config": SimpleNamespace(is_causal=False)}, 16, 16, 16),
}


def layer(is_causal: bool = False, config: Any = None, training: bool = False) -> Any:
    return SimpleNamespace(is_causal=is_causal, config=config or SimpleNamespace(), training=training)


def states(key_heads: int, dtype: torch.dtype, device: str, lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    """Return queries, keys and values of packed texts, `[1, heads, tokens, dim]`."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, sum(lengths), DIM) for heads in (HEADS, key_heads, key_heads)]
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]


def starts(lengths: tuple[int, ...], device: str) -> Tensor:
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    return bounds.view(1, 1, 1, -1).to(device)


def attend(module: Any, inputs: list[Tensor], lengths: tuple[int, ...] = LENGTHS, **settings: Any) -> Tensor:
    bounds = starts(lengths, str(inputs[0].device))
    mixed, _ = attention(module, *inputs, bounds, max_length_q=max(lengths), **settings)
    return mixed


def gradients(mixed: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(1)).to(mixed)
    return [value.double().cpu() for value in torch.autograd.grad((mixed * weights).sum(), inputs)]


def by_block_mask(inputs: list[Tensor], before: int, after: int) -> tuple[Tensor, list[Tensor]]:
    """Return the attention as one product over all tokens with a mask, in float64, and the inputs in float64."""
    query, key, value = (item.detach().double().cpu().requires_grad_() for item in inputs)
    text = torch.repeat_interleave(torch.tensor(LENGTHS))
    distance = torch.arange(len(text))[:, None] - torch.arange(len(text))
    allowed = (text[:, None] == text) & (distance <= before) & (distance >= -after)
    groups = HEADS // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * 0.3
    mixed = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ value.repeat_interleave(groups, 1)
    return mixed.transpose(1, 2), [query, key, value]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, FP32_ROUNDING), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_token_attends_to_its_window_of_its_text(
    window: str, key_heads: int, dtype: torch.dtype, rounding: float, device: str
) -> None:
    settings, size, before, after = WINDOWS[window]
    inputs = states(key_heads, dtype, device)
    mixed = attend(layer(**settings), inputs, scaling=0.3, sliding_window=size)
    expected, leaves = by_block_mask(inputs, before, after)
    assert mixed.shape == (1, sum(LENGTHS), HEADS, DIM)
    pairs = zip(
        [mixed.double().cpu(), *gradients(mixed, inputs)], [expected, *gradients(expected, leaves)], strict=True
    )
    for item, other in pairs:
        assert (item - other).norm() < rounding * other.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_the_result_of_a_text_has_the_same_bits_next_to_other_texts(device: str) -> None:
    inputs = states(HEADS, torch.bfloat16, device)
    together = attend(layer(), inputs)
    for index, length in enumerate(LENGTHS):
        own = slice(sum(LENGTHS[:index]), sum(LENGTHS[: index + 1]))
        alone = attend(layer(), [item[:, :, own] for item in inputs], (length,))
        assert torch.equal(alone, together[:, own])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_call_gives_the_same_bits(dropout: float, device: str) -> None:
    lengths = (300,) * 20  # more blocks of keys than one, whose gradients are added up
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        inputs = states(2, torch.bfloat16, device, lengths)
        mixed = attend(layer(training=True), inputs, lengths, dropout=dropout)
        results.append([mixed.double().cpu(), *gradients(mixed, inputs)])
    assert all(torch.equal(result, other) for result, other in zip(*results, strict=True))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_drops_while_training_only_and_keeps_the_mean(device: str) -> None:
    lengths = (64,) * 8
    inputs = [torch.ones(1, HEADS, sum(lengths), DIM, device=device, dtype=torch.bfloat16) for _ in range(3)]
    assert torch.equal(attend(layer(), inputs, lengths, dropout=0.5), inputs[2].transpose(1, 2))
    dropped = attend(layer(training=True), inputs, lengths, dropout=0.5).float()
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert 0.08 < dropped.std().item() < 0.17  # 1 / sqrt(64)


@pytest.mark.parametrize("device", DEVICES)
def test_a_padded_batch_attends_by_its_mask(device: str) -> None:
    inputs = [state.reshape(1, -1, 79, DIM)[:, :HEADS] for state in states(HEADS, torch.float32, device)]
    mask = (torch.arange(79, device=device) < 50).view(1, 1, 1, 79)
    mixed, _ = attention(layer(), *inputs, mask)
    alone = attend(layer(), [item[:, :, :50] for item in inputs], (50,))
    assert torch.allclose(mixed[:, :50], alone, atol=1e-6)


def test_padded_texts_repeat_and_select_for_their_own_kernel_alone() -> None:
    with simulated_gpu():
        inputs = [state.detach().to(CUDA).requires_grad_() for state in states(HEADS, torch.float32, "cpu")]
        seen = list[bool]()
        for item in inputs:
            item.register_hook(lambda grad: seen.append(torch.are_deterministic_algorithms_enabled()))
        mixed, _ = attention(layer(), *inputs, None)
        mixed.register_hook(lambda grad: seen.append(torch.are_deterministic_algorithms_enabled()))
        torch.autograd.grad(mixed.square().sum(), inputs)
    assert seen == [False] * 4
    assert not packed_attention._selections


def test_an_error_in_a_backward_pass_leaves_no_selection() -> None:
    with simulated_gpu() as counts:
        inputs = [state.detach().to(CUDA).requires_grad_() for state in states(HEADS, torch.float32, "cpu")]
        mixed, _ = attention(layer(), *inputs, None)
        counts.failure = lambda name: MemoryError() if torch.are_deterministic_algorithms_enabled() else None
        with pytest.raises(MemoryError):
            torch.autograd.grad(mixed.square().sum(), inputs)
        counts.failure = lambda name: None
        assert torch.are_deterministic_algorithms_enabled()
        attention(layer(), *inputs, None)
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("few", [2, 1_024])
@pytest.mark.parametrize("padding", [None, 1])
def test_the_gradient_of_embeddings_is_torchs_and_waits_for_nothing(
    padding: int | None, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_attention, "FEW_ROWS", few)
    monkeypatch.setattr(packed_attention, "MARKED", 3)
    numbers = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 2]])
    gradients = []
    for repeats in (False, True):
        with simulated_gpu() as counts:
            torch.manual_seed(0)
            layer = torch.nn.Sequential(torch.nn.Embedding(3, 4, padding_idx=padding)).to(CUDA)
            if repeats:
                packed_attention.use_repeatable_embeddings(layer)
            inputs = numbers.to(CUDA)
            counts.reset()
            layer(inputs).square().sum().backward()
            gradients.append(values(layer[0].weight.grad))
            assert not counts.syncs, counts.table()
    torch.testing.assert_close(*gradients)
    assert gradients[0].any()


def test_embeddings_with_another_gradient_stay_what_they_are() -> None:
    others = [torch.nn.Embedding(3, 4, **{name: 1}) for name in ("sparse", "scale_grad_by_freq", "max_norm")]
    layers = torch.nn.ModuleList([*others, torch.nn.Embedding(3, 4)])
    packed_attention.use_repeatable_embeddings(layers)
    assert [type(layer) for layer in layers] == [*[torch.nn.Embedding] * 3, packed_attention.RepeatableEmbedding]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 514, 30_522])
def test_the_gradient_of_embeddings_repeats(rows: int) -> None:
    torch.manual_seed(0)
    numbers = torch.randint(rows, (50_000,), device="cuda")
    layer = torch.nn.Sequential(torch.nn.Embedding(rows, 384, device="cuda"))
    packed_attention.use_repeatable_embeddings(layer)
    weights = torch.randn(50_000, 384, device="cuda")
    found = [torch.autograd.grad((layer(numbers) * weights).sum(), layer[0].weight)[0] for _ in range(4)]
    assert all(torch.equal(found[0], other) for other in found[1:])
    expected = torch.zeros(rows, 384, dtype=torch.float64).index_add_(0, numbers.cpu(), weights.double().cpu())
    torch.testing.assert_close(found[0].double().cpu(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_padded_texts_have_the_same_gradients_twice(dtype: torch.dtype) -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)  # as `Retriever.choose_packing` does
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (8, 16, 512, 64)
    inputs = [torch.randn(shape, device="cuda", dtype=dtype, generator=generator).requires_grad_() for _ in range(3)]
    mask = (torch.arange(512, device="cuda") < 500).view(1, 1, 1, -1).expand(8, 1, 512, 512)
    found = [torch.autograd.grad(attention(layer(), *inputs, mask)[0].float().square().sum(), inputs) for _ in range(4)]
    assert all(torch.equal(value, other) for others in found[1:] for value, other in zip(found[0], others, strict=True))
