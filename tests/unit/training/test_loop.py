"""The loop learns and stops at the best; its steps are those of the batch walk; adapters over a base in bf16."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import parameters
from safetensors import safe_open
from safetensors.torch import load_file

from raytriever.core.errors import StorageError
from raytriever.data.dataset import Positives
from raytriever.experiments.recipes.one_page import fit, train_on_one_page
from raytriever.losses.build_loss import build_loss
from raytriever.losses.distributed import ALONE
from raytriever.losses.loss_settings import LossConfig
from raytriever.losses.named_losses import LOSS_NAMES
from raytriever.models.model_settings import ModelConfig
from raytriever.training.loop import TrainingSetup, train
from raytriever.training.optimizer_and_schedule import learning_rate_scale
from raytriever.training.parallel.model_state import frozen_digest
from raytriever.training.parallel.objective import Objective
from raytriever.training.parallel.strategies import TrainingError
from raytriever.training.training_settings import TrainingConfig


def test_learns_with_two_towers(make_assignment, tiny_encoder: Path) -> None:
    work, recorder = make_assignment(
        total_steps=30,
        eval_steps=10,
        loss=LossConfig(loss="mw", temperature=0.05, distribution_weight=0.01),
        model=ModelConfig(str(tiny_encoder), towers="separate"),
    )
    before = parameters(work.retriever)
    train(work)
    after = parameters(work.retriever)
    assert recorder.losses[-1] < 0.8 * recorder.losses[0]
    unchanged = [name for name in before if torch.equal(before[name], after[name]) and "pooler" not in name]
    assert not unchanged


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_every_loss_trains_on_groups_of_several_positives(make_assignment, tiny_dataset: Path, name: str) -> None:
    work, recorder = make_assignment(
        total_steps=8, eval_steps=8, positives_per_query=3, loss=LossConfig(loss=name, temperature=0.05)
    )
    # Every query gets a second relevant document, so that groups of two positives and of negatives mix.
    positives = work.train.examples.positives
    documents = np.stack([positives.documents, (positives.documents + 1) % 128], axis=1)
    columns = (np.repeat(column, 2) for column in (positives.sources, positives.ranks))
    several = Positives(positives.queries, 2 * positives.offsets, np.sort(documents, axis=1).reshape(-1), *columns)
    train_on = dataclasses.replace(
        work.train, examples=dataclasses.replace(work.train.examples, positives=several, sampled=(several,))
    )
    train(dataclasses.replace(work, train=train_on))
    first = train_on.batch(0, work.retriever, ALONE, work.loss.symmetric)
    assert first.relevance.is_positive.sum(1).tolist() == [2] * 16
    learned = Objective(work.retriever, build_loss(work.loss), "fp32")(first, ALONE).value.item()
    assert learned < recorder.losses[0]  # of the same batch, before the first step


def test_the_threshold_of_bce_is_trained_and_logged(make_assignment) -> None:
    loss = LossConfig("bce", 0.05, threshold=0.3, learn_temperature=True)
    work, recorder = make_assignment(total_steps=6, eval_steps=6, loss=loss)
    train(work)
    assert 0 < abs(recorder.steps[6]["bce_threshold"] - 0.3) < 0.1


def test_the_first_losses_are_the_golden_ones(make_assignment) -> None:
    # Recorded from this code. A refactoring reproduces them; a numerical change edits them in sight.
    work, recorder = make_assignment(total_steps=4, warmup_steps=0)
    train(work)
    assert recorder.losses == pytest.approx(GOLDEN, rel=2e-4)


GOLDEN = [0.392603, 0.322816, 0.234849, 0.193944]


def test_a_step_logs_every_dim(make_assignment) -> None:
    settings = LossConfig(temperature=0.05, matryoshka_dims="32,8")
    work, recorder = make_assignment(total_steps=2, loss=settings)
    # The encoder compares by cosine, so what is cut has length one.
    first = Objective(work.retriever, build_loss(settings, True), "fp32")
    expected = first(work.train.batch(0, work.retriever, ALONE), ALONE).value.item()
    train(work)
    logged = recorder.steps[1]
    assert logged["loss"] == pytest.approx(expected, rel=1e-4)
    assert logged["loss"] == pytest.approx(logged["loss_at_32"] + logged["loss_at_8"], rel=1e-5)
    assert 0 <= logged["batch_auc_at_8"] <= 1
    assert "batch_auc_at_32" not in logged


def test_stops_when_the_dev_loss_does_not_improve_and_keeps_the_best(make_assignment, tmp_path: Path) -> None:
    # A learning rate far too high: the first look is the best.
    work, recorder = make_assignment(
        total_steps=40, eval_steps=1, patience=3, learning_rate=1.0, warmup_steps=0, folder=tmp_path
    )
    trainer_state = train(work)
    looks = {step: metrics["dev_loss"] for step, metrics in recorder.steps.items()}
    assert trainer_state.stopped
    assert trainer_state.step == trainer_state.best_step + 3 < 40
    assert min(looks, key=looks.__getitem__) == trainer_state.best_step
    remaining = {path.name for path in tmp_path.iterdir()}
    assert remaining == {f"step-{trainer_state.best_step}", f"step-{trainer_state.step}"}
    best = load_file(tmp_path / f"step-{trainer_state.best_step}" / "weights-0-of-1.safetensors")
    for name, value in parameters(work.retriever).items():
        assert "pooler" in name or torch.equal(value, best[f"retriever.{name}"]), name  # a pooler is frozen


def test_a_loss_that_is_not_finite_stops_before_it_ruins_the_weights(make_assignment) -> None:
    work, _ = make_assignment(total_steps=200, learning_rate=1e30, warmup_steps=0, max_grad_norm=1e30)
    with pytest.raises((TrainingError, ValueError), match=r"NaN|nan|inf"):
        train(work)


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("tokens", [None, 90])
def test_the_steps_are_those_of_the_loop(make_assignment, tokens: int | None) -> None:
    config = LossConfig(temperature=0.05)
    work, recorder = make_assignment(total_steps=4, loss=config, grad_cache_tokens=tokens)
    train(work)
    again, _ = make_assignment(total_steps=4, loss=config)
    settings = TrainingConfig(batch_size=16, learning_rate=1e-3, max_steps=4, grad_cache_tokens=tokens)
    losses = [value for _, value in fit(again.retriever, again.train, 0.05, settings)]
    assert losses == pytest.approx(recorder.losses, rel=1e-5)


def test_the_page_trains(tiny_dataset: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = TrainingConfig(batch_size=16, learning_rate=1e-3, max_steps=8, warmup_steps=0)
    retriever = train_on_one_page(str(tiny_dataset), str(tiny_encoder), settings=settings)
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert not retriever.training


def test_the_rate_rises_over_the_warm_up_then_falls_to_zero() -> None:
    scales = [learning_rate_scale(step, 4, 12) for step in range(13)]
    assert scales[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert all(a > b for a, b in pairwise(scales[4:]))
    assert scales[12] == 0
    assert learning_rate_scale(0, 0, 10) == 1, "without warm-up"
    assert all(learning_rate_scale(step, 10, 2) > 0 for step in range(2)), "shorter than its warm-up"


STEPS = 4


def setup(make_assignment: Any, tiny_encoder: Path, precision: str = "bf16", **settings: Any) -> TrainingSetup:
    model = ModelConfig(str(tiny_encoder), lora_rank=2)
    return make_assignment(total_steps=STEPS, model=model, precision=precision, **settings)[0]


def test_only_adapters_are_trained_and_saved_cached_or_not(make_assignment, tiny_encoder: Path, tmp_path: Path) -> None:
    results = []
    for number, settings in enumerate(({}, {"grad_cache_chunk": 5})):
        work = setup(make_assignment, tiny_encoder, folder=tmp_path / f"run-{number}", **settings)
        before = parameters(work.retriever)
        train(work)
        after = parameters(work.retriever)
        results.append(after)
        changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
        assert changed == {name for name in before if ".lora_" in name}
        assert all(after[name].dtype == (torch.float32 if name in changed else torch.bfloat16) for name in after)
        folder = work.folder / f"step-{STEPS}"
        saved = load_file(folder / "weights-0-of-1.safetensors")
        assert saved.keys() == {f"retriever.{name}" for name in changed}
        with safe_open(folder / "optimizer-0-of-1.safetensors", "pt") as optimizer_state:
            assert {name.partition(":")[0] for name in optimizer_state.keys()} == saved.keys()  # noqa: SIM118 - not a mapping
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=0.05, atol=2e-3)


@pytest.mark.slow
def test_another_base_is_refused_and_another_precision_of_it_is_not(make_assignment, tiny_encoder: Path) -> None:
    first, second = (setup(make_assignment, tiny_encoder, precision) for precision in ("bf16", "fp32"))
    assert frozen_digest(first.retriever) == frozen_digest(second.retriever)
    train(first)
    train(second)
    other = setup(make_assignment, tiny_encoder)
    with torch.no_grad():
        next(other.retriever.parameters())[3, 3] += 0.5
    with pytest.raises(StorageError, match=r"was made with frozen weights '\w{16}', but this run has") as caught:
        train(other)
    assert "\n" not in str(caught.value)
