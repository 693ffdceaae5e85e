"""GELU of training on a CPU, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raytriever.models.config import ModelConfig
from raytriever.models.cpu.layers import Gelu, train_on_cpu
from raytriever.models.retriever import load_retriever


def states(*shape: int) -> torch.Tensor:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(shape).astype(np.float32) * 3
    values.reshape(-1)[:6] = [0, -0.0, 1e-30, -40, 40, 3e38]
    return torch.from_numpy(values)


@pytest.mark.parametrize("shape", [(4, 4), (3, 7, 2_048), (1_024, 16)])
def test_values_and_gradients(shape: tuple[int, ...]) -> None:
    values = states(*shape).requires_grad_()
    upstream = torch.from_numpy(np.random.default_rng(4).standard_normal(shape).astype(np.float32))
    activated = Gelu()(values)
    activated.backward(upstream)
    exact = values.detach().double().requires_grad_()
    nn.functional.gelu(exact).backward(upstream.double())
    size = values.detach().double().abs().clamp(1)
    assert (((activated - nn.functional.gelu(exact)) / size).abs() < 4e-7).all()
    assert values.grad is not None
    assert exact.grad is not None
    assert ((values.grad - exact.grad).abs() <= 2e-6 * upstream.abs()).all()


def test_it_overwrites_what_needs_no_gradient() -> None:
    values = states(40, 64)
    kept = values.clone()
    with torch.no_grad():
        activated = Gelu()(values)
    assert activated.data_ptr() == values.data_ptr()
    trained = kept.clone().requires_grad_()
    with_gradient = Gelu()(trained)
    assert with_gradient.detach().numpy().tobytes() == activated.numpy().tobytes()
    assert trained.detach().numpy().tobytes() == kept.numpy().tobytes()


@pytest.mark.parametrize("other", [states(3, 5), states(40, 64).bfloat16(), states(64, 40).T, torch.empty(0, 16)])
def test_other_tensors_use_the_gelu_of_torch(other: torch.Tensor) -> None:
    kept = other.clone()
    assert torch.equal(Gelu()(other), nn.functional.gelu(kept))
    assert torch.equal(other, kept)


def test_an_encoder_trains_with_it(tiny_encoder: Path) -> None:
    retriever = load_retriever(ModelConfig(str(tiny_encoder)))
    train_on_cpu(retriever)
    layers = [module for module in retriever.modules() if isinstance(module, Gelu)]
    assert len(layers) == retriever.passage.backbone.config.num_hidden_layers
