"""Activation checkpointing: the same gradients with dropout, and less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from batch_ids import BatchIds, build_loss
from tiny_models import embed

from raytriever.core.errors import ConfigError
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.device_and_precision import autocast, base_type
from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.retriever import Retriever, load_retriever
from raytriever.training.batch_loader import Batch
from raytriever.training.parallel.objective import Objective

TEXTS = ["one", "two words", "a longer text, with punctuation", "again " * 6]
CHUNK = 90  # tokens


def prepared(
    tiny_encoder: Path, checkpointing: bool, dropout: float = 0.1, precision: str = "fp32", **settings: object
) -> Retriever:
    config = ModelConfig(str(tiny_encoder), activation_checkpointing=checkpointing, **settings)
    retriever = load_retriever(config, base_type(config.lora_rank, precision))
    set_dropout(retriever, dropout)
    prepare_for_training(retriever, config, 0)
    return retriever.train()


def loss_of(retriever: Retriever) -> torch.Tensor:
    queries, passages = embed(retriever, retriever.tokenize(TEXTS, "query"), retriever.tokenize(TEXTS[::-1], "passage"))
    return ((queries @ passages.T) / 0.1).log_softmax(1).diagonal().mean()


def gradients(retriever: Retriever) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    loss_of(retriever).backward()
    return {name: p.grad for name, p in retriever.named_parameters() if p.grad is not None}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-6, atol=1e-7, msg=name)


def stored_bytes(retriever: Retriever) -> int:
    """Bytes that wait for backward, weights aside."""
    weights = {p.untyped_storage().data_ptr() for p in retriever.parameters()}
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss_of(retriever)
    assert value.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("settings", [{}, {"towers": "separate"}, {"lora_rank": 2, "lora_dropout": 0.1}])
def test_gradients_are_the_same_with_dropout(tiny_encoder: Path, settings: dict[str, object]) -> None:
    results = [gradients(prepared(tiny_encoder, checkpointing, **settings)) for checkpointing in (False, True)]
    assert_same(*results)
    without_dropout = gradients(prepared(tiny_encoder, True, dropout=0.0, **settings))
    name = next(name for name, value in without_dropout.items() if value.abs().max() > 0)
    assert not torch.allclose(results[1][name], without_dropout[name])  # so dropout was in play


@pytest.mark.parametrize("settings", [{"lora_rank": 4, "lora_dropout": 0.2}, {"packs": True}])
def test_gradient_caching_and_checkpointing_draw_the_same_dropout(
    tiny_encoder: Path, settings: dict[str, object]
) -> None:
    packs, results = settings.pop("packs", False), []
    for checkpointing in (False, True):
        retriever = prepared(tiny_encoder, checkpointing, **settings)
        retriever.packs = packs
        loss = build_loss(LossConfig("infonce", temperature=0.1))
        objective = Objective(retriever, loss, "fp32")
        rows = torch.arange(len(TEXTS))
        sides = retriever.tokenize(TEXTS, "query", CHUNK), retriever.tokenize(TEXTS[::-1], "passage", CHUNK)
        torch.manual_seed(11)
        value = objective(Batch(*sides, BatchIds(rows, rows[:, None], rows), CHUNK), ALONE).value
        value.backward()
        grads = {name: p.grad for name, p in retriever.named_parameters() if p.grad is not None}
        results.append((value.item(), torch.rand(1).item(), grads))
    assert results[0][:2] == results[1][:2]
    for name, gradient in results[0][2].items():
        torch.testing.assert_close(results[1][2][name], gradient, rtol=1e-5, atol=1e-6, msg=name)


def test_gradients_of_adapters_over_a_base_in_bf16_are_the_same(tiny_encoder: Path) -> None:
    results = []
    for checkpointing in (False, True):
        retriever = prepared(tiny_encoder, checkpointing, precision="bf16", lora_rank=2)
        with autocast("bf16", torch.device("cpu")):
            results.append(gradients(retriever))
        frozen = [parameter for parameter in retriever.parameters() if not parameter.requires_grad]
        assert {parameter.dtype for parameter in frozen} == {torch.bfloat16}
        assert all(parameter.grad is None for parameter in frozen)
    assert_same(*results)
    assert any(value.abs().max() > 0 for value in results[1].values())


def test_fewer_activations_are_stored_for_backward_in_training_alone(tiny_encoder: Path) -> None:
    checkpointed, plain = prepared(tiny_encoder, True), prepared(tiny_encoder, False)
    assert stored_bytes(checkpointed) < 0.4 * stored_bytes(plain)
    assert stored_bytes(checkpointed.eval()) == stored_bytes(plain.eval())


def test_an_encoder_without_support_is_refused(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    monkeypatch.setattr(BertModel, "supports_gradient_checkpointing", False)
    with pytest.raises(ConfigError, match=r"activation_checkpointing=True: BertModel does not support activation"):
        prepared(tiny_encoder, True)
