"""A checkpoint is restored to the bit, from any writer, or not at all; a state that does not fit is one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

from raytriever.core.errors import StorageError
from raytriever.core.store.commit import committed_directory
from raytriever.models.checkpoint_model import Slice
from raytriever.training.checkpoint import (
    OPTIMIZER,
    WEIGHTS,
    State,
    newest_checkpoint,
    prune,
    read_slices,
    remove_unfinished,
    write_slices,
    write_state,
)
from raytriever.training.early_stopping import TrainerState
from raytriever.training.optimizer_and_schedule import build_optimizer
from raytriever.training.parallel.model_state import replicated_state, restore_replicated


class Model(nn.Module):
    """Two towers that share their weights, a parameter that is not trained, one without dimensions."""

    def __init__(self, dim: int = 4, extra: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(3, dim)
        self.passage = self.query
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        if extra:
            self.head = nn.Linear(dim, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.query(rows).square().mean() * self.temperature.exp()


def build(seed: int, **settings: object) -> tuple[Model, torch.optim.AdamW]:
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


def save(folder: Path, trainer_state: TrainerState, slices: Iterable[Slice] | None = None) -> None:
    """A checkpoint of one worker, of a model that has never learnt where no slices are given."""
    model, optimizer = build(1)
    with committed_directory(folder / f"step-{trainer_state.step}", replace=True) as aside:
        write_slices(replicated_state(model, optimizer) if slices is None else slices, aside, 0, 1)
        write_state(State(trainer_state, {}), aside)


def cut(slices: Iterable[Slice], worker: int, workers: int) -> Iterable[Slice]:
    """What one of several workers holds where every tensor is shared out among them."""
    for piece in slices:
        start, end = (len(piece.values) * rank // workers for rank in (worker, worker + 1))
        if end > start:
            yield dataclasses.replace(piece, values=piece.values[start:end].clone(), start=start)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_loaded_run_goes_on_as_the_saved_one(tmp_path: Path, workers: int) -> None:
    model, optimizer = build(1)
    for number in range(3):
        step(model, optimizer, number)
    for worker in range(workers):
        write_slices(cut(replicated_state(model, optimizer), worker, workers), tmp_path, worker, workers)
    expected = [step(model, optimizer, number) for number in range(3, 6)]

    other, other_optimizer = build(2)
    step(other, other_optimizer, 9)  # moments of its own, to be overwritten
    restore_replicated(read_slices(tmp_path, WEIGHTS, OPTIMIZER), other, other_optimizer)
    assert [step(other, other_optimizer, number) for number in range(3, 6)] == expected
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize(
    ("keep", "remaining"),
    [(1, [[2], [2, 4], [2, 6], [6, 8], [8, 10]]), (2, [[2], [2, 4], [2, 4, 6], [4, 6, 8], [6, 8, 10]])],
)
def test_the_best_and_the_newest_are_kept(tmp_path: Path, keep: int, remaining: list[list[int]]) -> None:
    (tmp_path / "step-notes").mkdir()
    results = []
    for number, best in ((2, 2), (4, 2), (6, 2), (8, 8), (10, 8)):
        trainer_state = TrainerState(number, best, 0.5)
        save(tmp_path, trainer_state)
        prune(tmp_path, trainer_state, keep)
        results.append(sorted(int(path.name[5:]) for path in tmp_path.iterdir() if path.name != "step-notes"))
    assert results == remaining
    assert (tmp_path / "step-notes").is_dir()
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-10", [])


def test_a_broken_one_that_is_newer_does_not_count_as_kept(tmp_path: Path) -> None:
    for number in (4, 6, 10):
        save(tmp_path, TrainerState(number, 4, 0.5))
    (tmp_path / "step-10" / "state.json").unlink()
    assert newest_checkpoint(tmp_path)[0] == tmp_path / "step-6"
    save(tmp_path, TrainerState(7, 4, 0.5))
    prune(tmp_path, TrainerState(7, 4, 0.5), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-7"]


@pytest.mark.parametrize("harm", ["damaged", "flipped", "missing", "without manifest"])
def test_what_is_broken_is_passed_over_and_named(tmp_path: Path, harm: str) -> None:
    assert newest_checkpoint(tmp_path / "none") == (None, [])
    for number in (9, 10):
        save(tmp_path, TrainerState(number, 9, 0.5))
    file = tmp_path / "step-10" / "weights-0-of-1.safetensors"
    content = file.read_bytes()
    if harm == "damaged":
        file.write_bytes(content[:-1])
    elif harm == "flipped":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "missing":
        file.unlink()
    else:
        (tmp_path / "step-10" / "manifest.json").unlink()
    result, (line,) = newest_checkpoint(tmp_path)
    assert result == tmp_path / "step-9"
    assert line.startswith(str(tmp_path / "step-10"))
    assert line.endswith("The run resumes from an earlier checkpoint, if there is one.")
    assert "\n" not in line


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    save(tmp_path, TrainerState(9, 9, 0.5))
    for name in (".step-10.aside-00aa", ".step-10-part-1-00bb", "..step-10-part-1-00bb.aside-00cc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(b"half")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-9"]
    remove_unfinished(tmp_path / "none")


def test_the_trainer_state_counts_looks_without_a_better_one() -> None:
    looks = TrainerState()
    message = []
    for number, loss in enumerate([1.0, 0.5, 0.5, 0.7, 0.4, 0.6, 0.4, float("nan")], start=1):
        looks = looks.after_validation(number, -loss, patience=3)
        message.append((looks.best_step, looks.validations_without, looks.stopped))
    assert message == [
        (1, 0, False),
        (2, 0, False),
        (2, 1, False),
        (2, 2, False),
        (5, 0, False),
        (5, 1, False),
        (5, 2, False),
        (5, 3, True),
    ]


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


def without(name: str) -> Callable[[list[Slice]], list[Slice]]:
    return lambda slices: [piece for piece in slices if piece.name != name]


def changed(name: str, values: torch.Tensor, shape: tuple[int, ...]) -> Callable[[list[Slice]], list[Slice]]:
    return lambda slices: [Slice(name, values, 0, shape) if piece.name == name else piece for piece in slices]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("weight"), r"is of another model: weight is absent in the checkpoint and \(2, 3\) in the model"),
        (without("weight:exp_avg"), "weight has the moments exp_avg_sq, step, but must have all or none"),
        (without("bias:step"), "bias has the moments exp_avg, exp_avg_sq, but must have all or none"),
        (lambda s: [*s, Slice("weight:further", torch.zeros(6), 0, (2, 3))], "but must have all or none"),
        (lambda s: [*s, Slice("other:step", torch.zeros(1), 0, ())], r"is of another model: other is"),
        (changed("weight", torch.zeros(6, dtype=torch.int64), (2, 3)), "values that are not floating-point numbers"),
        (changed("weight", torch.zeros(6), (1 << 40, 1 << 20)), f"weight has 6 values, not {1 << 60}"),
        (changed("bias:exp_avg", torch.zeros(3), (2,)), "bias:exp_avg has 3 values, not 2"),
        (changed("weight", torch.zeros(5), (2, 3)), "weight has 5 values, not 6"),
        (changed("bias", torch.zeros(2), (1, 2)), r"bias is \(1, 2\) in the checkpoint and \(2,\) in the model"),
    ],
)
def test_a_state_that_does_not_fit_is_one_line(change: Callable[[list[Slice]], list[Slice]], says: str) -> None:
    module, optimizer = trained()
    with pytest.raises(StorageError, match=says) as refused:
        restore_replicated(change(list(replicated_state(module, optimizer))), *trained())
    assert "\n" not in str(refused.value)
