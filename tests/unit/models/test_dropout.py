"""Dropout by key: share, mean, and one mask for values and gradients without stored masks."""

from __future__ import annotations

import pytest
import torch

from raytriever.models.cpu.dropout import Dropout, drop, dropout

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


def test_types_share_masks_and_in_place_is_the_same() -> None:
    values = torch.randn(3000)
    assert torch.equal(drop(values, 0.3, 9) != 0, drop(values.bfloat16(), 0.3, 9) != 0)
    expected = drop(values, 0.3, 9)
    assert drop(values, 0.3, 9, in_place=True) is values
    assert torch.equal(values, expected)


def test_the_generator_decides_the_mask() -> None:
    module, values = Dropout(0.5), torch.ones(64, 64)
    torch.manual_seed(5)
    one, other = module(values), module(values)
    torch.manual_seed(5)
    assert torch.equal(module(values), one)
    assert not torch.equal(one, other)


def test_values_are_unchanged_outside_of_training_or_for_probability_0() -> None:
    values = torch.randn(8, 8)
    assert Dropout(0.5).eval()(values) is values
    assert dropout(values, 0.0) is values
    assert not dropout(values, 1.0).any()
    assert dropout(values.double(), 0.5).dtype == torch.float64


def test_no_mask_is_stored_for_backward() -> None:
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: held.append(tensor), lambda tensor: tensor):
        dropout(torch.randn(100, requires_grad=True), 0.5).sum()
    assert not held
