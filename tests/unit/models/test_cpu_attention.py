"""Attention of short texts on a CPU: torch's fused attention and its gradients, whatever the padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raytriever.models.cpu.attention import attend, supports


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
