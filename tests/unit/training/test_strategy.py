"""What a strategy refuses, what a state may not lack, and what gradient caching is for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from batch_ids import BatchIds, build_loss
from steps import take_step
from torch import nn

from raytriever.core.errors import ConfigError, StorageError
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.checkpoint_model import Slice, whole_tensors
from raytriever.models.model_settings import ModelConfig
from raytriever.models.retriever import load_retriever
from raytriever.training.batch_loader import Batch
from raytriever.training.loop import build_strategy
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategies import Strategy, TrainingError
from raytriever.training.training_settings import TrainingConfig

CPU = torch.device("cpu")
TEXTS, TOKENS = 48, 28  # texts of each side, tokens of the longest


def objective(encoder: Path) -> Objective:
    retriever = load_retriever(ModelConfig(str(encoder)))
    retriever.query.backbone.set_attn_implementation("eager")
    return Objective(retriever, build_loss(LossConfig("mw", temperature=0.1, learn_temperature=True)), "fp32")


def batch(model: Objective, chunk: int | None = None) -> Batch:
    texts = [f"{number} a text like all others" for number in range(TEXTS)]
    ids = BatchIds(torch.arange(TEXTS), torch.arange(TEXTS)[:, None], torch.arange(TEXTS))
    queries, passages = (model.retriever.tokenize(texts, side, chunk) for side in ("query", "passage"))
    return Batch(queries, passages, ids, chunk)


class Ledger:
    """Bytes of saved tensors that are alive, and their peak."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def pack(self, tensor: torch.Tensor) -> _Entry:
        return _Entry(self, tensor)

    def watch(self, model: Objective, chunk: int | None) -> int:
        with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda entry: entry.tensor):
            model(batch(model, chunk), ALONE).value.backward()
        return self.peak


class _Entry:
    def __init__(self, ledger: Ledger, tensor: torch.Tensor) -> None:
        self.ledger, self.tensor = ledger, tensor
        ledger.live += tensor.nbytes
        ledger.peak = max(ledger.peak, ledger.live)

    def __del__(self) -> None:
        self.ledger.live -= self.tensor.nbytes


def test_activations_are_those_of_a_chunk(tiny_encoder: Path) -> None:
    whole = Ledger().watch(objective(tiny_encoder), None)
    part = Ledger().watch(objective(tiny_encoder), 4 * TOKENS)
    assert part < whole / 8  # 24 parts; the last and the one that is encoded again are alive in turn


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("texts", [5, 1_000], ids=["many chunks", "all kept"])
def test_gradients_are_complete_one_after_another_where_a_chunk_is_left(tiny_encoder: Path, texts: int) -> None:
    """So DDP reduces those of the last layers while the first ones are differentiated."""
    model, chunk = objective(tiny_encoder), texts * TOKENS
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    value = model(batch(model, chunk), ALONE).value
    value.backward()
    expected = {name: parameter.grad for name, parameter in trained.items()}
    model.zero_grad(set_to_none=True)
    model.leaves_chunk, events = True, list[str]()
    for name, parameter in trained.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))

    def watch(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: events.append("embeddings"))

    model.retriever.query.backbone.embeddings.register_forward_hook(watch)
    left = model(batch(model, chunk), ALONE).value
    assert torch.equal(left, value)
    events.clear()
    left.backward()
    assert sorted(events) == sorted([*(name for name in trained if expected[name] is not None), "embeddings"])
    last = next(index for index, name in enumerate(events) if "layer.1.output.dense" in name)
    assert last < events.index("embeddings")
    for name, parameter in trained.items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


def build(name: str, model: nn.Module) -> Strategy:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, fused=True)
    return build_strategy(TrainingConfig(strategy=name), model, optimizer, ALONE, CPU)  # type: ignore[arg-type]


def test_a_missing_package_is_named(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(
        ConfigError, match=r"DeepSpeed is not installed; install it: pip install 'raytriever\[deepspeed\]'"
    ):
        build("zero2", objective(tiny_encoder))


def test_an_optimizer_without_a_switch_on_the_device_is_refused_at_once(tiny_encoder: Path) -> None:
    model = objective(tiny_encoder)
    model.loss.forward = lambda *inputs: SimpleNamespace(  # type: ignore[method-assign,assignment]
        value=inputs[0].sum() * torch.inf, statistics={}
    )
    strategy = build_strategy(TrainingConfig(), model, torch.optim.SGD(model.parameters()), ALONE, CPU)
    with pytest.raises(TrainingError, match="step 3: the loss is "):
        take_step(strategy, batch(model), 0.1, 3)


def test_slices_are_put_together_wherever_they_were_cut() -> None:
    values = torch.arange(12.0)
    slices = [Slice("a", values[7:], 7, (3, 4)), Slice("a", values[:7], 0, (3, 4)), Slice("b", values[:1], 0, ())]
    results = dict(whole_tensors(slices))
    assert torch.equal(results["a"], values.view(3, 4))
    assert results["b"].shape == ()
    with pytest.raises(StorageError, match=r"have shapes \(3, 4\) and \(12,\)"):
        dict(whole_tensors([slices[1], Slice("a", values[7:], 7, (12,))]))
