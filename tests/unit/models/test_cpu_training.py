"""Attention and dropout for training on a CPU: the same functions and the same gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raytriever.models.config import ModelConfig
from raytriever.models.cpu.attention import attend, supports
from raytriever.models.cpu.dropout import Dropout, drop, dropout
from raytriever.models.cpu.layers import NAME, attention, train_on_cpu
from raytriever.models.encoder import set_dropout
from raytriever.models.precision import autocast
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.models.writer import write_model

TEXTS = ["one", "two words", "a longer text, with punctuation", "again " * 6]


def retriever_of(encoder: Path, ours: bool, dropout: float) -> Retriever:
    retriever = load_retriever(ModelConfig(str(encoder)))
    set_dropout(retriever, dropout)
    if ours:
        train_on_cpu(retriever)
    else:
        retriever.query.backbone.set_attn_implementation("eager")
    return retriever.train()


def gradients(retriever: Retriever, precision: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    with autocast(precision, torch.device("cpu")):
        embeddings = torch.cat([retriever.encode(part, "query") for part in retriever.tokenize(TEXTS, "query").buckets])
    (embeddings.float() * torch.linspace(-1, 1, embeddings.shape[1])).sum().backward()
    return embeddings, {name: p.grad for name, p in retriever.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.05)])
def test_without_dropout_the_embeddings_do_not_change(tiny_encoder: Path, precision: str, tolerance: float) -> None:
    actual, expected = (gradients(retriever_of(tiny_encoder, ours, 0.0), precision) for ours in (True, False))
    torch.testing.assert_close(actual[0], expected[0], rtol=tolerance, atol=tolerance)
    assert actual[1].keys() == expected[1].keys()
    largest = max(value.norm() for value in expected[1].values())
    for name, value in expected[1].items():
        assert (actual[1][name] - value).norm() <= tolerance * max(value.norm(), 0.1 * largest), name


def test_the_gradient_of_dropped_attention_is_the_derivative() -> None:
    torch.manual_seed(0)
    module = torch.nn.Module().train()
    query, key, value = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    mask = torch.zeros(2, 1, 5, 5)
    mask[1, :, :, 3:] = torch.finfo(torch.float32).min
    weight = torch.randn(2, 5, 3, 4)

    def ours(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return (attention(module, *inputs, mask, dropout=0.4)[0] * weight).sum()

    def literal(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        drawn = int(torch.empty((), dtype=torch.int64).random_())
        scale = drop(torch.ones(2, 3, 5, 5), 0.4, drawn)
        weights = (inputs[0] @ inputs[1].transpose(2, 3) / 2 + mask).softmax(-1) * scale
        return ((weights @ inputs[2]).transpose(1, 2) * weight).sum()

    inputs = (query, key, value)
    torch.testing.assert_close(ours(*inputs), literal(*inputs))
    assert not torch.allclose(ours(*inputs), (attention(module.eval(), *inputs, mask, dropout=0.4)[0] * weight).sum())
    module.train()
    for actual, expected in zip(
        torch.autograd.grad(ours(*inputs), inputs), torch.autograd.grad(literal(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_a_mask_gives_no_nan_in_bf16() -> None:
    query = torch.randn(1, 1, 3, 4, dtype=torch.bfloat16)
    mask = torch.full((1, 1, 3, 3), torch.finfo(torch.float32).min)
    assert attention(torch.nn.Module(), query, query, query, mask)[0].isfinite().all()


def test_every_dropout_is_replaced_and_the_written_model_is_the_same(tiny_encoder: Path, tmp_path: Path) -> None:
    ours, plain = retriever_of(tiny_encoder, True, 0.1), retriever_of(tiny_encoder, False, 0.1)
    assert ours.query.backbone.config._attn_implementation == NAME
    dropouts = [part for part in ours.modules() if isinstance(part, torch.nn.Dropout)]
    assert dropouts
    assert all(isinstance(part, Dropout) and part.p == 0.1 and part.training for part in dropouts)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    for name, retriever in (("ours", ours), ("plain", plain)):
        write_model(retriever, tmp_path / name)
    written = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "plain")]
    assert written[0] == written[1]


def states(tokens: int) -> list[Tensor]:
    torch.manual_seed(tokens)
    return [torch.randn(3, 2, tokens, 32, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("tokens", [1, 6, 16, 37, 160])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_and_gradients_are_those_of_fused_attention(tokens: int, threads: int) -> None:
    inputs, grad = states(tokens), torch.randn(3, tokens, 2, 32)
    mask = torch.ones(3, 1, tokens, tokens, dtype=torch.bool)
    mask[1, :, :, -(tokens // 4) or tokens :] = False
    mask[2, :, :, : tokens // 4] = False
    grad[1, -(tokens // 4) or tokens :] = 0
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, mask).transpose(1, 2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for given in (mask, torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)):
            actual = attend(*inputs, given)
            torch.testing.assert_close(actual[mask[:, 0, 0]], expected[mask[:, 0, 0]], rtol=1e-5, atol=2e-6)
            gradients = [torch.autograd.grad(one, inputs, grad, retain_graph=True) for one in (actual, expected)]
            for ours, theirs in zip(*gradients, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("tokens", [1, 16, 37, 160])
def test_results_in_bf16_are_rounded_once(tokens: int) -> None:
    inputs = [each.detach().bfloat16() for each in states(tokens)]
    mask = torch.ones(3, 1, tokens, tokens, dtype=torch.bool)
    mask[1, :, :, -(tokens // 4) or tokens :] = False
    exact = torch.nn.functional.scaled_dot_product_attention(*(each.double() for each in inputs), mask).transpose(1, 2)
    actual = attend(*inputs, mask)
    assert actual.dtype == torch.bfloat16
    # A bfloat16 has 8 significant bits; sums in float32 add little.
    away = (actual.double() - exact).abs() - exact.abs() * 2**-8
    assert away[mask[:, 0, 0]].max() < 1e-6
    assert not actual[~mask[:, 0, 0]].any()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_padding_changes_no_bit(kind: torch.dtype) -> None:
    whole = [each.detach().to(kind) for each in states(37)]
    mask = torch.ones(3, 1, 1, 37, dtype=torch.bool)
    mask[..., 20:] = False
    short = attend(*(each[:, :, :20] for each in whole), None)
    assert torch.equal(attend(*whole, mask)[:, :20], short)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_scaling_counts_and_a_nan_is_not_hidden(kind: torch.dtype) -> None:
    query, key, value = (each.detach().to(kind) for each in states(9))
    wide = [each.float() for each in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, scale=0.5).transpose(1, 2)
    torch.testing.assert_close(attend(query, key, value, None, 0.5), expected.to(kind))
    query[0, 0, 3, 1] = torch.nan
    assert attend(query, key, value, None)[0, 3, 0].isnan().all()


def test_dropout_has_one_mask_for_results_and_gradients() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(4, 3, 37, 48, requires_grad=True) for _ in range(3))
    mask = torch.ones(4, 1, 37, 37, dtype=torch.bool)
    mask[1, :, :, 20:] = False
    bias = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)

    def dropped(*inputs: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attend(*inputs, mask, dropout=0.3)

    def weights(query: Tensor, key: Tensor) -> Tensor:
        return (query @ key.transpose(2, 3) / 48**0.5 + bias).softmax(-1)

    # The values are unit vectors, so the results are the weights times their factors.
    shown = dropped(query.detach(), key.detach(), torch.eye(37, 48).expand(4, 3, -1, -1))[..., :37].transpose(1, 2)
    attended = (mask & mask.transpose(2, 3)).expand(-1, 3, -1, -1)  # results of padding are 0
    factors = torch.where(attended, shown / weights(query, key).detach(), 0)
    share = (factors[attended] == 0).double().mean().item()
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / int(attended.sum())) ** 0.5
    torch.testing.assert_close(factors[factors > 0], torch.full_like(factors[factors > 0], 1 / 0.7), rtol=1e-4, atol=0)
    rows = factors[attended.all(-1)].reshape(-1, 37) > 0
    assert len(rows.unique(dim=0)) == len(rows), "rows share masks"

    exact = (factors > 0) / (1 - round(0.3 * 2**16) / 2**16)
    expected = ((weights(query, key) * exact) @ value).transpose(1, 2)
    actual, grad = dropped(query, key, value), torch.randn(4, 37, 3, 48)
    grad[1, 20:] = 0
    is_token = mask[:, 0, 0]
    torch.testing.assert_close(actual[is_token], expected[is_token], rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(
        *(torch.autograd.grad(one, (query, key, value), grad) for one in (actual, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-6)


def test_other_types_and_widths_are_refused() -> None:
    query = torch.randn(1, 1, 4, 24)
    assert not supports(query, query, query)
    assert not supports(*[torch.randn(1, 1, 4, 32, dtype=torch.float64)] * 3)
    wide = torch.randn(1, 1, 4, 32, dtype=torch.bfloat16, requires_grad=True)
    assert not supports(wide, wide, wide), "bf16 has no gradients"
    with torch.no_grad():
        assert supports(wide, wide, wide)
    assert not supports(wide.detach(), wide.detach(), wide.detach().float())


TYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_and_the_mean_are_right(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(0)
    values = torch.ones(1_000_003, dtype=dtype)
    result = dropout(values, probability)
    share = (result != 0).double().mean().item()
    assert abs(share - (1 - probability)) < 5 * (probability * (1 - probability) / len(values)) ** 0.5
    scale = 1 / (1 - round(probability * 2**16) / 2**16)
    assert set(result.unique().tolist()) == {0.0, torch.tensor(scale, dtype=dtype).item()}


@pytest.mark.parametrize("dtype", TYPES)
def test_neighbours_and_keys_are_independent(dtype: torch.dtype) -> None:
    masks = torch.stack([drop(torch.ones(2**18, dtype=dtype), 0.5, key) != 0 for key in (1, 2, 2**62)]).double() - 0.5
    for lag in (1, 2, 3, 4, 1024):
        assert abs((masks[:, lag:] * masks[:, :-lag]).mean()) < 0.0025
    assert (masks @ masks.T / masks.shape[1] - 0.25 * torch.eye(3)).abs().max() < 0.0025


def test_scaling_rounds_as_torch_does() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    actual = drop(every, 2**-16, 3)
    is_kept = (actual != 0) | (every == 0)
    expected = (every.float() * torch.tensor(2**16 / (2**16 - 1))).bfloat16()
    torch.testing.assert_close(actual[is_kept], expected[is_kept], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_gradient_has_the_same_mask(dtype: torch.dtype) -> None:
    values = torch.randn(7, 333, dtype=dtype, requires_grad=True)
    result = dropout(values.T, 0.3)
    (gradient,) = torch.autograd.grad(result, values, torch.ones_like(result))
    assert torch.equal(gradient.T != 0, result != 0)
    assert 0 < (result == 0).sum() < result.numel()


def test_values_are_unchanged_outside_of_training_or_for_probability_0() -> None:
    values = torch.randn(8, 8)
    assert Dropout(0.5).eval()(values) is values
    assert dropout(values, 0.0) is values
    assert not dropout(values, 1.0).any()
    assert dropout(values.double(), 0.5).dtype == torch.float64
