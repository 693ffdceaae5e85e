"""Operands of the losses' products in bf16 and TF32: the loss of the rounded embeddings, with sums in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from batch_ids import BatchIds, build_loss
from examples import Example, example
from reference_losses import reference_loss

from raytriever.core.errors import ConfigError, LossInputError
from raytriever.losses import score_matrix as panels
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import SCORE_LOSSES
from raytriever.losses.score_matrix import Products

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
every_loss = pytest.mark.parametrize("name", SCORE_LOSSES)
on_devices = pytest.mark.parametrize("device", DEVICES)
# A power of two, so that embeddings divided by it are rounded as they are.
TAU = 0.125


def moved(ids: BatchIds, device: str) -> BatchIds:
    tensors = {name: value.to(device) for name, value in vars(ids).items() if isinstance(value, torch.Tensor)}
    return BatchIds(**{**vars(ids), **tensors, "teacher": None})


def batch(seed: int) -> Example:
    return example(seed, batch=8, hard=3, positives=3, dim=40)


def gradients(name: str, precision: str, sample: Example, device: str, tau: float = TAU) -> list[torch.Tensor]:
    """The loss and its gradients by queries and passages of float32 embeddings."""
    inputs = [x.detach().float().to(device).requires_grad_() for x in (sample.queries, sample.passages)]
    config = LossConfig(loss=name, temperature=tau, loss_precision=precision)
    value = build_loss(config)(*inputs, moved(sample.ids, device)).value
    return [x.detach().cpu().double() for x in (value, *torch.autograd.grad(value, inputs))]


def oracle(name: str, sample: Example, rounds: bool, tau: float = TAU) -> list[torch.Tensor]:
    """The literal loss in float64, of embeddings that are rounded to bf16 or not."""
    inputs = [x.detach().float() for x in (sample.queries, sample.passages)]
    inputs = [(x.bfloat16() if rounds else x).double().requires_grad_() for x in inputs]
    value = reference_loss(LossConfig(loss=name, temperature=tau), *inputs, sample.ids)
    return [value.detach(), *torch.autograd.grad(value, inputs)]


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours - exact).abs().max() / exact.abs().max())


@pytest.mark.fast_every(5)
@on_devices
@every_loss
def test_bf16_operands_give_the_loss_of_the_rounded_embeddings(name: str, device: str) -> None:
    sample = batch(0)
    ours, exact = gradients(name, "bf16", sample, device), oracle(name, sample, rounds=True)
    assert error(ours[0], exact[0]) < 2e-6
    # Derivatives by scores are rounded to 8 bits.
    assert max(map(error, ours[1:], exact[1:])) < 2.0**-8


@pytest.mark.fast_every(15)
@on_devices
@every_loss
@pytest.mark.parametrize("tau", [0.01, 1e-3, 30.0])
def test_every_precision_is_finite_at_extreme_temperatures(name: str, tau: float, device: str) -> None:
    for precision in ("fp32", "tf32", "bf16"):
        assert all(bool(torch.isfinite(x).all()) for x in gradients(name, precision, batch(3), device, tau)), precision


@pytest.mark.fast_every(15)
@on_devices
@every_loss
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_the_same_bits_twice_and_cut_into_panels(
    name: str, precision: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = batch(4)
    first = gradients(name, precision, sample, device)
    for ours, again in zip(first, gradients(name, precision, sample, device), strict=True):
        assert torch.equal(ours, again)
    for budget in ("PANEL_BYTES", "GPU_PANEL_BYTES"):
        monkeypatch.setattr(panels, budget, 5 * 4 * len(sample.passages))
    for ours, cut in zip(first, gradients(name, precision, sample, device), strict=True):
        torch.testing.assert_close(cut, ours, rtol=1e-4, atol=1e-5 * float(ours.abs().max()))


@pytest.mark.gpu
@every_loss
def test_fp32_and_tf32_on_a_gpu_are_near_the_exact_loss(name: str) -> None:
    sample = batch(5)
    exact = oracle(name, sample, rounds=False)
    strict, fast = (gradients(name, precision, sample, "cuda") for precision in ("fp32", "tf32"))
    assert max(map(error, strict, exact)) < 1e-5
    assert max(map(error, fast, exact)) < 2e-2


@every_loss
def test_tf32_is_fp32_on_a_processor(name: str) -> None:
    strict, fast = (gradients(name, precision, batch(6), "cpu") for precision in ("fp32", "tf32"))
    assert all(map(torch.equal, strict, fast))


def test_float64_embeddings_are_not_rounded() -> None:
    sample = batch(7)
    loss = build_loss(LossConfig(loss="infonce", temperature=TAU, loss_precision="bf16"))
    value = loss(sample.queries, sample.passages, sample.ids).value.detach()
    exact = reference_loss(LossConfig(loss="infonce", temperature=TAU), sample.queries, sample.passages, sample.ids)
    torch.testing.assert_close(value, exact.detach(), rtol=1e-12, atol=0)


def test_tf32_is_allowed_in_the_products_alone() -> None:
    before = torch.get_float32_matmul_precision()
    like = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    for precision, expected in (("fp32", "highest"), ("tf32", "high")):
        with Products(precision, like).as_chosen():
            assert torch.get_float32_matmul_precision() == expected
        assert torch.get_float32_matmul_precision() == before
        products = Products(precision, like)
        with pytest.raises(ZeroDivisionError), products.as_chosen():
            _ = 1 / 0
        assert torch.get_float32_matmul_precision() == before


def test_a_gpu_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    like = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    with pytest.raises(LossInputError, match=r"loss_precision: this GPU cannot multiply bf16; give fp32"):
        Products("bf16", like)
    assert Products("tf32", like).operand_dtype == torch.float32


@pytest.mark.parametrize("name", ["kl", "margin-mse"])
def test_a_loss_without_the_products_has_no_precision(name: str) -> None:
    with pytest.raises(ConfigError, match="loss_precision"):
        build_loss(LossConfig(loss=name, loss_precision="bf16"))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss_precision.*bf16"):
        build_loss(LossConfig(loss_precision="bf15"))
