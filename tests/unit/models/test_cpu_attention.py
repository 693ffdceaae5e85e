"""Attention of short texts on a CPU: torch's fused attention and its gradients, whatever the padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raytriever.models.cpu_attention import attend, supports


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


def test_padding_changes_no_bit() -> None:
    whole, mask = states(37), torch.ones(3, 1, 1, 37, dtype=torch.bool)
    mask[..., 20:] = False
    short = attend(*(each[:, :, :20] for each in whole), None)
    assert torch.equal(attend(*whole, mask)[:, :20], short)


def test_a_scaling_counts_and_a_nan_is_not_hidden() -> None:
    query, key, value = (each.detach() for each in states(9))
    torch.testing.assert_close(
        attend(query, key, value, None, 0.5),
        torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.5).transpose(1, 2),
    )
    query[0, 0, 3, 1] = torch.nan
    assert attend(query, key, value, None)[0, 3, 0].isnan().all()


def test_other_types_and_widths_are_refused() -> None:
    query = torch.randn(1, 1, 4, 24)
    assert not supports(query, query, query)
    assert not supports(*[torch.randn(1, 1, 4, 32, dtype=torch.bfloat16)] * 3)
