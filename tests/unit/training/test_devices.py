"""Training on a CUDA device equals training on the CPU: every loss, gradient caching, precision, dropout."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from runs import train_until

from raytriever.losses.build_loss import build_loss
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES
from raytriever.training.checkpoint import load_best
from raytriever.training.checkpoint_writer import _buffer_for
from raytriever.training.early_stopping import TrainerState
from raytriever.training.loop import train
from raytriever.training.parallel.objective import Objective, with_default_operands

pytestmark = pytest.mark.usefixtures("own_cache")

CHUNKS = {"whole": {}, "cached": {"grad_cache_chunk": 5}, "cached by tokens": {"grad_cache_tokens": 90}}


@pytest.mark.fast_every(99)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_every_loss_trains_as_on_the_cpu(taught, name: str, cuda: torch.device, tmp_path: Path) -> None:
    settings = {"total_steps": 2, "eval_steps": 2, "dev_batches": 1, "loss": LossConfig(loss=name, temperature=0.1)}
    logged = []
    for number, (device, chunk) in enumerate(
        ((torch.device("cpu"), {}), (cuda, {}), (cuda, {"grad_cache_tokens": 300}))
    ):
        work, recorder = taught(device=device, folder=tmp_path / str(number), **settings, **chunk)
        train(work)
        logged.append(recorder.steps)
    expected = logged[0]
    compared = ("loss", "gradient_norm", "batch_auc", "temperature", "dev_loss", "dev_batch_auc", "teacher_agreement")
    for steps in logged[1:]:
        assert steps.keys() == expected.keys()
        for step, metrics in steps.items():
            assert metrics.keys() >= expected[step].keys()
            for metric in compared:
                if metric in expected[step]:
                    assert metrics[metric] == pytest.approx(expected[step][metric], rel=2e-3, abs=1e-5), metric


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mw", "infonce-symmetric"])
def test_a_guide_masks_as_on_the_cpu(
    make_assignment, other_encoder: Path, name: str, cuda: torch.device, tmp_path: Path
) -> None:
    logged, loss = [], LossConfig(name, temperature=0.1, guide=str(other_encoder), guide_margin=0.01)
    for device in (torch.device("cpu"), cuda):
        work, recorder = make_assignment(
            total_steps=1, dev_batches=1, device=device, folder=tmp_path / device.type, loss=loss, guide=other_encoder
        )
        train(work)
        logged.append(recorder.steps[1])
    assert 0 < logged[0]["guide_masked"] < logged[0]["guide_most_masked"]
    for metric in ("loss", "gradient_norm", "batch_auc", "guide_masked", "guide_most_masked", "dev_loss"):
        assert logged[1][metric] == pytest.approx(logged[0][metric], rel=2e-3), metric


@pytest.mark.slow
@pytest.mark.fast_every(6)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_bf16_is_close_to_fp32(make_assignment, chunk: str, cuda: torch.device, tmp_path: Path) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        work, recorder = make_assignment(
            device=cuda,
            folder=tmp_path / precision,
            precision=precision,
            total_steps=2,
            loss=LossConfig("infonce", 0.1),
            **CHUNKS[chunk],
        )
        train(work)
        losses[precision] = recorder.losses
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.slow
def test_a_run_resumes_on_a_device(make_assignment, cuda: torch.device, tmp_path: Path) -> None:
    """Fused AdamW counts its steps on the device, also after a checkpoint was read."""
    settings = {"device": cuda, "total_steps": 4, "checkpoint_steps": 1, "loss": LossConfig("infonce", 0.1, True)}
    whole, expected = make_assignment(folder=tmp_path / "whole", **settings)
    train(whole)
    first, _ = make_assignment(folder=tmp_path / "parts", **settings)
    train_until(first, lambda step, metrics: step == 3)
    again, recorder = make_assignment(folder=tmp_path / "parts", **settings)
    train(again)
    assert recorder.notices
    assert recorder.losses == expected.losses[-len(recorder.losses) :]
    for parameter, other in zip(again.retriever.parameters(), whole.retriever.parameters(), strict=True):
        assert torch.equal(parameter.detach().cpu(), other.detach().cpu())


@pytest.mark.slow
def test_the_best_weights_are_loaded_onto_the_device(make_assignment, cuda: torch.device, tmp_path: Path) -> None:
    work, _ = make_assignment(
        device=cuda, folder=tmp_path, total_steps=3, checkpoint_steps=1, loss=LossConfig("infonce", 0.1), keep=3
    )
    train(work)
    objective = Objective(work.retriever, build_loss(work.loss), "fp32", None)
    before = [parameter.detach().cpu() for parameter in objective.parameters()]
    load_best(tmp_path, objective, TrainerState(step=3, best_step=2), ALONE, cuda)
    after = [parameter.detach() for parameter in objective.parameters()]
    assert all(item.is_cuda for item in after)
    assert any(not torch.equal(value, other.cpu()) for value, other in zip(before, after, strict=True))


def test_a_checkpoint_is_copied_from_a_device_to_pinned_memory(cuda: torch.device) -> None:
    """Else each copy waits, and takes a tenth of the bandwidth."""
    assert _buffer_for(torch.zeros(4, device=cuda)).is_pinned()


def test_a_gpu_that_encodes_in_bf16_multiplies_scores_in_tf32() -> None:
    gpu = torch.device("cuda")
    mw = LossConfig("mw", 0.05)
    assert with_default_operands(mw, "bf16", gpu).loss_precision == "tf32"
    assert with_default_operands(dataclasses.replace(mw, loss_precision="fp32"), "bf16", gpu).loss_precision == "fp32"
    for config, precision, device in (
        (mw, "fp32", gpu),
        (mw, "bf16", torch.device("cpu")),
        (LossConfig("kl", 0.05), "bf16", gpu),
    ):
        assert with_default_operands(config, precision, device) is config
