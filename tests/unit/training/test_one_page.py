"""The page that one reads first trains, and its steps are those of the training loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.losses.config import LossConfig
from raytriever.recipes.one_page import fit, train_on_one_page
from raytriever.training.config import TrainingConfig
from raytriever.training.loop import train


@pytest.mark.parametrize("loss", ["mw", "infonce-symmetric"])
def test_the_steps_are_those_of_the_loop(make_assignment, loss: str) -> None:
    config = LossConfig(loss=loss, temperature=0.05)
    work, recorder = make_assignment(total_steps=4, loss=config)
    train(work)
    again, _ = make_assignment(total_steps=4, loss=config)
    settings = TrainingConfig(batch_size=16, learning_rate=1e-3, max_steps=4)
    assert [value for _, value in fit(again.retriever, again.train, config, settings)] == recorder.losses


def test_the_page_trains(tiny_dataset: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = TrainingConfig(batch_size=16, learning_rate=1e-3, max_steps=8, warmup_steps=0)
    retriever = train_on_one_page(str(tiny_dataset), str(tiny_encoder), settings=settings)
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert not retriever.training
