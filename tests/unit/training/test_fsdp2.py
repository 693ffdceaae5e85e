"""FSDP2 in a group of one process: the steps, states and errors of DDP."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from batch_ids import BatchIds, build_loss
from steps import take_step
from torch import distributed, nn
from torch.torch_version import TorchVersion

from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.checkpoint_model import whole_tensors
from raytriever.models.device_and_precision import base_type
from raytriever.models.encoder import set_dropout
from raytriever.models.model_settings import ModelConfig
from raytriever.models.prepare_for_training import prepare_for_training
from raytriever.models.retriever import load_retriever
from raytriever.training.batch_loader import Batch
from raytriever.training.loop import build_strategy
from raytriever.training.optimizer_and_schedule import build_optimizer
from raytriever.training.parallel import fsdp2
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategies import Strategy
from raytriever.training.training_settings import TrainingConfig

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TEXTS, CHUNK = 12, 60  # texts of each side, tokens
LORA = {"lora_rank": 2, "precision": "bf16"}
VARIANTS: dict[str, dict[str, object]] = {
    "whole batch": {},
    "cached": {},
    "separate towers": {"towers": "separate"},
    "adapters": LORA,
    "adapters of separate towers": {**LORA, "towers": "separate"},
    "head": {"head": True},
    "checkpointed activations": {"activation_checkpointing": True},
}


@pytest.fixture(autouse=True)
def _no_group_remains() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def objective(encoder: Path, device: str, **options: object) -> Objective:
    precision, head = str(options.pop("precision", "fp32")), options.pop("head", False)
    config = ModelConfig(str(encoder), **options)  # type: ignore[arg-type]
    retriever = load_retriever(config, base_type(config.lora_rank, precision))
    prepare_for_training(retriever, config, 0)
    if head:
        torch.manual_seed(1)
        retriever.query.head.append(nn.Linear(32, 16))
    set_dropout(retriever, 0.0)
    loss = build_loss(LossConfig("mw", temperature=0.1, learn_temperature=True))
    return Objective(retriever.train(), loss, precision).to(device)  # type: ignore[arg-type]


def batch(model: Objective, device: str, chunk: int | None = CHUNK) -> Batch:
    texts = ["".join(chr(97 + (7 * row + column) % 26) for column in range(3 + row)) for row in range(TEXTS)]
    numbers = torch.arange(TEXTS, device=device)
    sides = [model.retriever.tokenize(texts, side, chunk).to(torch.device(device)) for side in ("query", "passage")]
    return Batch(*sides, BatchIds(numbers, numbers[:, None], numbers), chunk)


def strategy_of(name: str, model: Objective, device: str) -> Strategy:
    optimizer = build_optimizer(model, 1.0, 0.01)
    for group in optimizer.param_groups:
        group["eps"] = 1e-3  # or gradients that are nothing but rounding, such as key biases', would be steps
    target = torch.device(device, 0) if device == "cuda" else torch.device(device)
    return build_strategy(TrainingConfig(strategy=name), model, optimizer, ALONE, target)


def weights_of(strategy: Strategy) -> dict[str, torch.Tensor]:
    whole = whole_tensors(sorted(strategy.state(), key=lambda piece: piece.name))
    return {name: values.clone().cpu() for name, values in whole if ":" not in name}


def steps(strategy: Strategy, model: Objective, device: str, count: int = 2, chunk: int | None = CHUNK) -> list[float]:
    return [take_step(strategy, batch(model, device, chunk), 1e-2, step)[0].value.item() for step in range(count)]


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_is_that_of_ddp(variant: str, device: str, tiny_encoder: Path) -> None:
    losses, weights = [], []
    chunk = None if variant == "whole batch" else CHUNK
    for strategy in ("ddp", "fsdp2"):
        model = objective(tiny_encoder, device, **VARIANTS[variant])
        built = strategy_of(strategy, model, device)
        losses.append(steps(built, model, device, chunk=chunk))
        weights.append(weights_of(built))
        with torch.no_grad():
            losses[-1].append(built.evaluate(batch(model, device, chunk)).value.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-6 if device == "cpu" else 1e-5)
    assert losses[0][0] != losses[0][1]
    assert weights[0].keys() == weights[1].keys()
    for key, values in weights[0].items():
        assert weights[1][key].numpy() == pytest.approx(values.numpy(), abs=2e-6 if device == "cpu" else 1e-4), key


@pytest.mark.slow
def test_a_released_model_is_plain(tiny_encoder: Path) -> None:
    model = objective(tiny_encoder, "cpu", towers="separate")
    kinds = [type(module) for module in model.modules()]
    built = strategy_of("fsdp2", model, "cpu")
    steps(built, model, "cpu")
    saved = weights_of(built)
    assert kinds != [type(module) for module in model.modules()]
    built.release()
    assert kinds == [type(module) for module in model.modules()]
    assert all(type(value) is torch.Tensor for value in model.state_dict().values())
    other = objective(tiny_encoder, "cpu", towers="separate")
    with torch.no_grad():
        for key, parameter in other.named_parameters():
            parameter.copy_(saved.get(key, parameter))  # what is not trained is not saved
    for copied in (model, copy.deepcopy(model)):
        value = copied(batch(copied, "cpu"), ALONE).value
        torch.testing.assert_close(value, other(batch(other, "cpu"), ALONE).value)
        value.backward()
    assert all(p.grad is not None for p in model.loss.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_failed_is_done_again(
    where: str, device: str, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = objective(tiny_encoder, device)
    losses = steps(strategy_of("ddp", expected, device), expected, device)
    model = objective(tiny_encoder, device)
    built = strategy_of("fsdp2", model, device)

    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError

    def fail_later(module: object, inputs: object, output: tuple[torch.Tensor, ...] | torch.Tensor) -> None:
        first = output if isinstance(output, torch.Tensor) else output[0]
        if first.requires_grad:
            first.register_hook(fail)

    block = model.retriever.query.blocks[0].get_submodule("attention.output.dense")
    hook = block.register_forward_hook(fail if where == "forward" else fail_later)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        take_step(built, batch(model, device), 1e-2, 0)
    hook.remove()
    # Below, FSDP2 cannot be reset, and the loop restarts the worker.
    assert built.abandon() == (TorchVersion(torch.__version__) >= (2, 13))
    if not built.abandon():
        return
    assert steps(built, model, device) == pytest.approx(losses, rel=1e-6 if device == "cpu" else 1e-5)


def test_steps_of_the_optimizer_are_restored_where_it_counts_them(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused AdamW counts on the GPU; a count on the CPU ends every resumed run."""
    model = objective(tiny_encoder, "cpu")
    built = strategy_of("fsdp2", model, "cpu")
    steps(built, model, "cpu", 1)
    saved = [replace(piece, values=piece.values.clone()) for piece in built.state()]
    monkeypatch.setattr(fsdp2, "device_of_steps", lambda *_: torch.device("meta"))
    built.load_state(saved)
    counted = [state["step"].device.type for state in built._optimizer.state.values()]
    assert counted
    assert set(counted) == {"meta"}
