"""What is saved at a step comes back to the bit, or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from raytriever.errors import StorageError
from raytriever.training.checkpoint import (
    Progression,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    save_checkpoint,
)
from raytriever.training.optimizer import build_optimizer


class Model(nn.Module):
    """Two towers that share their weights, a buffer, a parameter that is not trained."""

    def __init__(self, width: int = 4, extra: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(3, width)
        self.passage = self.query
        self.register_buffer("scale", torch.tensor([2.0]))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        if extra:
            self.head = nn.Linear(width, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.query(rows) * self.scale).square().mean() * self.temperature.exp()


def made(seed: int, **settings: object) -> tuple[Model, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Model(**settings)
    return model, build_optimizer(model, 0.1, 0.01)


def step(model: Model, optimizer: torch.optim.AdamW, seed: int) -> float:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
    loss = model(rows)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def test_a_loaded_run_goes_on_as_the_saved_one(tmp_path: Path) -> None:
    model, optimizer = made(1)
    for number in range(3):
        step(model, optimizer, number)
    with torch.no_grad():
        model.scale.fill_(3.0)
    progression = Progression(3, 2, 0.25, 1)
    save_checkpoint(tmp_path, model, optimizer, progression)
    expected = [step(model, optimizer, number) for number in range(3, 6)]

    other, other_optimizer = made(2)
    step(other, other_optimizer, 9)  # moments of its own, to be overwritten
    assert load_checkpoint(tmp_path / "step-3", other, other_optimizer) == progression
    assert [step(other, other_optimizer, number) for number in range(3, 6)] == expected
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_a_checkpoint_before_the_first_step_has_no_moments(tmp_path: Path) -> None:
    model, optimizer = made(1)
    save_checkpoint(tmp_path, model, optimizer, Progression())
    other, other_optimizer = made(2)
    load_checkpoint(tmp_path / "step-0", other, other_optimizer)
    assert step(other, other_optimizer, 0) == step(model, optimizer, 0)


@pytest.mark.parametrize("settings", [{"extra": True}, {"width": 8}])
def test_another_model_is_refused_whole(tmp_path: Path, settings: dict[str, object]) -> None:
    model, optimizer = made(1)
    save_checkpoint(tmp_path, model, optimizer, Progression(1))
    other, _ = made(2, **settings)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(
        StorageError, match=rf"^{tmp_path}/step-1: is of another model \(.*\); train anew with --fresh$"
    ):
        load_weights(tmp_path / "step-1", other)
    for name, tensor in before.items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_only_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    model, optimizer = made(1)
    (tmp_path / "step-notes").mkdir()
    kept = []
    for number, best in ((2, 2), (4, 2), (6, 2), (8, 8), (10, 8)):
        save_checkpoint(tmp_path, model, optimizer, Progression(number, best, 0.5))
        kept.append(sorted(path.name for path in tmp_path.iterdir()))
    assert kept[2] == ["step-2", "step-6", "step-notes"]
    assert kept[-1] == ["step-10", "step-8", "step-notes"]
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-10", [])


def test_what_is_torn_is_passed_over_and_named(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") == (None, [])
    model, optimizer = made(1)
    for number in (9, 10):
        save_checkpoint(tmp_path, model, optimizer, Progression(number, 9, 0.5))
    (tmp_path / "step-10" / "weights.safetensors").write_bytes(b"torn")
    (tmp_path / "step-11").mkdir()
    found, passed = newest_checkpoint(tmp_path)
    assert found == tmp_path / "step-9"
    assert [line.split(":")[0].removeprefix(f"{tmp_path}/").split("/")[0] for line in passed] == ["step-11", "step-10"]
    assert all(line.endswith("an older checkpoint is used") for line in passed)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    model, optimizer = made(1, width=4000)
    with pytest.raises(StorageError, match=r"checkpoints/step-4: no space left on the disk; free some space"):
        save_checkpoint(folder, model, optimizer, Progression(4, 2, 0.5))
    assert not list(folder.iterdir())


def test_the_progression_counts_looks_without_a_better_one() -> None:
    looks = Progression()
    told = []
    for number, loss in enumerate([1.0, 0.5, 0.5, 0.7, 0.4, 0.6, 0.4, float("nan")], start=1):
        looks = looks.looked(number, loss, patience=3)
        told.append((looks.best_step, looks.looks_without, looks.stopped))
    assert told == [
        (1, 0, False),
        (2, 0, False),
        (2, 1, False),
        (2, 2, False),
        (5, 0, False),
        (5, 1, False),
        (5, 2, False),
        (5, 3, True),
    ]
    assert dataclasses.replace(looks) == looks
