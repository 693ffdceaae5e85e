"""Attention and dropout for training on a CPU: the same function and the same gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from raytriever.models.config import ModelConfig
from raytriever.models.cpu.dropout import Dropout, drop
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
