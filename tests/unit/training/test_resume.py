"""A run that is interrupted, anywhere, ends bit-equal to one that never was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from runs import Killed, LogRecorder, assert_same, parameters, train_until

from raytriever.core.errors import StorageError
from raytriever.losses.loss_settings import LossConfig
from raytriever.models.model_settings import ModelConfig
from raytriever.training import loop
from raytriever.training.checkpoint import OPTIMIZER, WEIGHTS, State, newest_checkpoint, read_slices, read_state
from raytriever.training.early_stopping import TrainerState
from raytriever.training.loop import TrainingSetup, train

STEPS = 6
# Temperature and bias are learnt and dropout drawn: all must come back, and the schedule still falls.
SETTINGS = {"total_steps": STEPS, "dropout": 0.1, "warmup_steps": 2, "loss": LossConfig("bce", 0.05, True)}


@dataclass
class Whole:
    """What a run that was never interrupted left."""

    trainer_state: TrainerState
    message: dict[int, dict[str, float]]
    parameters: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]


KNOWN: dict[str, Whole] = {}


def state_at(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Weights and moments of a checkpoint, those of the loss too."""
    results = {piece.name: piece.values.clone() for piece in read_slices(folder / f"step-{step}", WEIGHTS, OPTIMIZER)}
    assert {"loss.log_temperature:exp_avg_sq", "loss.bias:exp_avg_sq"} <= set(results)
    return results


def metrics(message: Mapping[int, Mapping[str, float]]) -> dict[int, tuple[float | None, ...]]:
    """What does not depend on the clock."""
    names = ("loss", "learning_rate", "gradient_norm", "temperature", "batch_auc", "dev_loss")
    return {step: tuple(values.get(name) for name in names) for step, values in message.items()}


def die_at(work: TrainingSetup, monkeypatch: pytest.MonkeyPatch, at: int, where: str) -> None:
    """Train until step `at`, and die there.

    Args:
        where: `step`, when the update is done; `look`, after a look and before anything is copied; `save`, when the
            checkpoint is being written.
    """
    save = loop.CheckpointWriter.save

    def save_or_die(writer: loop.CheckpointWriter, slices: object, state: State) -> None:
        save(writer, slices, state)
        if state.trainer_state.step >= at and where == "save":  # one that is not a best one may have been put off
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop.CheckpointWriter, "save", save_or_die)
        train_until(work, lambda step, message: step == at and where == ("look" if "dev_loss" in message else "step"))


@pytest.fixture
def whole(make_assignment, tmp_path: Path) -> Callable[..., Whole]:
    """A run that is never interrupted, made once for the same settings."""

    def run(**settings: object) -> Whole:
        key = repr(sorted(settings.items(), key=lambda item: item[0]))
        if key not in KNOWN:
            work, recorder = make_assignment(folder=tmp_path / "whole", **settings)
            trainer_state = train(work)
            KNOWN[key] = Whole(
                trainer_state,
                recorder.steps,
                parameters(work.retriever),
                state_at(tmp_path / "whole", trainer_state.step),
            )
        return KNOWN[key]

    return run


def assert_ends_alike(
    work: TrainingSetup, recorder: LogRecorder, message: Mapping[int, dict[str, float]], whole: Whole
) -> None:
    """Train on, to the end of the run that was never interrupted, saying all that it said and nothing else."""
    assert train(work) == whole.trainer_state
    assert_same(parameters(work.retriever), whole.parameters)
    assert_same(state_at(work.folder, whole.trainer_state.step), whole.state)
    expected = metrics(whole.message)
    assert len(expected) == whole.trainer_state.step
    # Nothing is logged with another value the second time, and all is logged at least once.
    both = {step: dict(values) for step, values in message.items()}
    for step, values in recorder.steps.items():
        both.setdefault(step, {}).update(values)
    assert metrics(both) == expected
    assert metrics({step: {**both[step], **values} for step, values in message.items()}).items() <= expected.items()


@pytest.fixture
def ends_alike(
    make_assignment, whole: Callable[..., Whole], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LogRecorder]:
    """Train, die at each of some places, and train on; return what the last life said."""

    def check(settings: dict[str, object], *deaths: tuple[int, str]) -> LogRecorder:
        message: dict[int, dict[str, float]] = {}
        for at, where in deaths:
            work, recorder = make_assignment(**settings)
            die_at(work, monkeypatch, at, where)
            for step, values in recorder.steps.items():
                message.setdefault(step, {}).update(values)
        work, recorder = make_assignment(**settings)
        assert_ends_alike(work, recorder, message, whole(**settings))
        return recorder

    return check


POINTS = [
    (4, "step"),
    *((step, "step") for step in (1, 2, 3, 5)),
    (4, "save"),
    (2, "save"),
    (6, "step"),
    (6, "look"),
    (2, "look"),
]


@pytest.mark.fast_every(5)
@pytest.mark.parametrize(("at", "where"), POINTS)
def test_interrupted_anywhere_it_ends_alike(ends_alike: Callable[..., LogRecorder], at: int, where: str) -> None:
    saved = at if where == "save" else (at - 1) // 2 * 2
    assert ends_alike(SETTINGS, (at, where)).notices == ([f"Resumed from checkpoint step-{saved}."] if saved else [])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_interrupted_again_and_again_it_ends_alike(ends_alike: Callable[..., LogRecorder], chunk: int | None) -> None:
    """Saved at every step, also between looks, with gradients cached and not."""
    settings = {**SETTINGS, "checkpoint_steps": 1, "keep": 2, "grad_cache_chunk": chunk}
    last = ends_alike(settings, (1, "step"), (6, "step"))
    assert len(last.notices) == 1
    assert min(last.steps) >= 4  # something was saved between looks


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "saved"), [(1e-6, True), (60.0, False)])
def test_time_asks_for_checkpoints_between_looks(
    ends_alike: Callable[..., LogRecorder], monkeypatch: pytest.MonkeyPatch, minutes: float, saved: bool
) -> None:
    monkeypatch.setattr("raytriever.training.loop.CHECKPOINT_MINUTES", minutes)
    settings = {**SETTINGS, "total_steps": 40, "eval_steps": 40}
    assert bool(ends_alike(settings, (35, "step")).notices) == saved


@pytest.mark.slow
@pytest.mark.parametrize(("at", "where"), [(4, "look"), (2, "look"), (3, "step"), (4, "save"), (5, "look")])
def test_early_stopping_remembers_how_long_it_waited(
    ends_alike: Callable[..., LogRecorder], whole: Callable[..., Whole], at: int, where: str
) -> None:
    # A learning rate far too high: an early look is the best.
    settings = {**SETTINGS, "total_steps": 40, "eval_steps": 1, "patience": 3, "learning_rate": 1.0, "warmup_steps": 0}
    expected = whole(**settings).trainer_state
    assert expected.stopped
    assert expected.step == expected.best_step + 3 < 40
    ends_alike(settings, (min(at, expected.step), where))


def test_a_finished_run_does_nothing_and_a_damaged_newest_is_named_once_and_the_one_before_is_used(
    make_assignment, whole: Callable[..., Whole]
) -> None:
    expected = whole(**SETTINGS)
    work, recorder_first = make_assignment(**SETTINGS)
    train(work)
    finished, recorder = make_assignment(**SETTINGS)
    assert train(finished) == expected.trainer_state
    assert not recorder.steps
    assert_same(parameters(finished.retriever), expected.parameters)
    newest, _ = newest_checkpoint(work.folder)
    assert newest == work.folder / f"step-{STEPS}"
    file = newest / "optimizer-0-of-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    before, _ = newest_checkpoint(work.folder)
    assert before is not None
    again, recorder = make_assignment(**SETTINGS)
    assert_ends_alike(again, recorder, recorder_first.steps, expected)
    assert len(recorder.notices) == 2
    assert recorder.notices[0].startswith(f"{file}: is incomplete")
    assert recorder.notices[1] == f"Resumed from checkpoint {before.name}."


def written(writer: loop.CheckpointWriter) -> None:
    if writer._thread is not None:
        writer._thread.join()


@pytest.mark.slow
def test_a_damaged_best_is_named_and_the_best_from_there_counts(
    make_assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "total_steps": 12, "eval_steps": 1, "patience": 20, "learning_rate": 1.0, "warmup_steps": 0,
    }  # fmt: skip
    work, _ = make_assignment(**settings)
    with monkeypatch.context() as patient:
        # However slow the disk, every look is saved, not only those at which no checkpoint is being written.
        status = loop.CheckpointWriter.status
        patient.setattr(
            loop.CheckpointWriter, "status", lambda writer, *asked: (written(writer), status(writer, *asked))[1]
        )
        die_at(work, patient, 8, "step")
    newest, _ = newest_checkpoint(work.folder)
    trainer_state = read_state(newest).trainer_state
    assert trainer_state.best_step < trainer_state.step
    file = work.folder / f"step-{trainer_state.best_step}" / "weights-0-of-1.safetensors"
    file.write_bytes(b"damaged")
    again, second_recorder = make_assignment(**settings)
    result = train(again)
    assert second_recorder.notices[0].startswith(f"{file}: is incomplete")
    assert second_recorder.notices[0].endswith("The best checkpoint will be chosen from later checkpoints.")
    looks = {step: message["dev_loss"] for step, message in second_recorder.steps.items()}
    assert result.best_step == min(looks, key=looks.__getitem__) > trainer_state.step


REFUSED: dict[str, dict[str, object]] = {
    "was made with data 'one', but this run has 'other'": {"data_digest": "other"},
    "was made with training.seed 0, but this run has 9": {"seed": 9},
    "was made with loss.temperature 0.05, but this run has 0.07": {"loss": LossConfig("bce", 0.07, True)},
    "was made with total_steps 6, but this run has 9": {"total_steps": 9},
    "is of another model": {"towers": "separate"},
}


def test_what_would_go_on_otherwise_is_refused_by_name_and_the_way_it_is_done_may_change(
    make_assignment, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, _ = make_assignment(**SETTINGS)
    die_at(dataclasses.replace(work, data_digest="one"), monkeypatch, 5, "step")
    remaining = sorted(path.name for path in work.folder.iterdir())
    for message, changes in REFUSED.items():
        others = {name: value for name, value in changes.items() if name not in ("data_digest", "towers")}
        model = ModelConfig(str(tiny_encoder), towers=changes.get("towers"))
        again, second_recorder = make_assignment(**{**SETTINGS, "model": model, **others})
        with pytest.raises(StorageError, match=rf"step-4: {message}.*with another output$") as caught:
            train(dataclasses.replace(again, data_digest=changes.get("data_digest", "one")))
        assert "\n" not in str(caught.value)
        assert not second_recorder.steps
        assert sorted(path.name for path in work.folder.iterdir()) == remaining
    again, second_recorder = make_assignment(**SETTINGS, keep=3, checkpoint_steps=2, grad_cache_chunk=7)
    train(dataclasses.replace(again, data_digest="one"))
    assert second_recorder.notices == ["Resumed from checkpoint step-4."]


def test_a_disk_that_fills_up_ends_the_run_in_one_line(make_assignment, small_disk: Path) -> None:
    work, recorder = make_assignment(**SETTINGS, folder=small_disk / "checkpoints")
    with pytest.raises(StorageError, match=r"checkpoints/step-2: no space left on the disk; free some space"):
        train(work)
    assert 2 <= max(recorder.steps) <= 4  # at the next step, or at the next save, which waits
    assert newest_checkpoint(work.folder) == (None, [])
