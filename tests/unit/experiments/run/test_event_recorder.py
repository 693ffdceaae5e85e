"""Recorder of a run's events: each step is logged once, also after restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raytriever.cluster.events_and_restarts import (
    CheckpointEvent,
    LogMessage,
    LostWorker,
    MissingWorkers,
    StatusMessage,
    StepEvent,
    ValidationEvent,
)
from raytriever.core import progress
from raytriever.experiments.run import event_recorder as module
from raytriever.experiments.run.event_recorder import Recorder, headline_metrics
from raytriever.tracking.step_log import STEPS, StepLog, read_curve
from raytriever.tracking.tracker import Backlog, DatasetRecord, Point


class Memory:
    """Tracker that stores points in the run directory and in memory, and can be made to fail."""

    run_id = "memory"

    def __init__(self, folder: Path) -> None:
        self.steps = StepLog(folder)
        self.points: list[Point] = []
        self.requests = 0
        self.tags: list[dict[str, str]] = []

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        assert not config
        assert dataset is None
        self.tags.append(dict(tags))

    def log(self, points: Sequence[Point]) -> None:
        before = self.steps.size
        self.steps.add(points)
        self.requests += 1
        self.points += self.steps.read_from(before, 1_000_000).points

    def log_file(self, path: Path, folder: str = "") -> None:
        raise NotImplementedError

    def finish(self, status: str) -> None:
        raise NotImplementedError

    def backlog(self) -> Backlog:
        return Backlog()

    def logged(self, name: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in self.points if point.name == name]


def step_event(step: int, loss: float | None = None) -> StepEvent:
    return StepEvent(step, {"loss": 1 / step if loss is None else loss, "learning_rate": 1e-5})


def validation_step(step: int) -> StepEvent:
    return StepEvent(step, {"dev_loss": 10 / step})


def record(tracker: Memory, folder: Path, items: Sequence[StepEvent | LogMessage]) -> Recorder:
    with Recorder(tracker, folder, 10) as recorder:
        for item in items:
            recorder.record(item)
    return recorder


def test_all_events_are_logged_in_one_request_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = Memory(tmp_path)
    items = [LogMessage("Resumed from checkpoint step-0"), step_event(1), step_event(2), validation_step(2)]
    record(memory, tmp_path, items)
    assert memory.requests == 1
    assert memory.logged("loss") == read_curve(tmp_path, "loss") == [(1, 1.0), (2, 0.5)]
    assert memory.logged("dev_loss") == read_curve(tmp_path, "dev_loss") == [(2, 5.0)]
    assert read_curve(tmp_path, "unheard of") == []
    assert all(abs(point.milliseconds - memory.points[0].milliseconds) < 60_000 for point in memory.points)
    lines = [json.loads(line) for line in (tmp_path / STEPS).read_text().splitlines()]
    assert sorted({line["step"] for line in lines}) == [1, 2]
    err = capsys.readouterr().err.splitlines()
    assert err == ["Resumed from checkpoint step-0", "step 2: dev loss 5"]


def test_a_resumed_run_logs_no_step_twice(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    record(memory, tmp_path, [step_event(1), step_event(2), validation_step(2), step_event(3)])
    # Killed after step 3, whose checkpoint is of step 2: step 3 is done and received again.
    again = Memory(tmp_path)
    record(again, tmp_path, [step_event(3, 99.0), step_event(4), validation_step(4)])
    assert read_curve(tmp_path, "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert [*memory.logged("loss"), *again.logged("loss")] == read_curve(tmp_path, "loss")
    dev_losses = [*memory.logged("dev_loss"), *again.logged("dev_loss")]
    assert dev_losses == read_curve(tmp_path, "dev_loss") == [(2, 5.0), (4, 2.5)]
    assert again.steps.points == 2 * 4 + 2  # two figures a step, two looks


def test_steps_are_logged_during_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.0)
    memory = Memory(tmp_path)
    with Recorder(memory, tmp_path, 10) as recorder:
        recorder.record(step_event(1))
        assert memory.logged("loss") == [(1, 1.0)]
        assert (tmp_path / STEPS).read_text().count("\n") == 1


def test_points_are_stored_before_their_checkpoint_is_committed(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    with Recorder(memory, tmp_path, 10) as recorder:
        recorder.record(step_event(1))
        assert memory.logged("loss") == []
        recorder.record(CheckpointEvent(1))
        assert memory.logged("loss") == [(1, 1.0)]
        assert (tmp_path / STEPS).read_text().count("\n") == 1


def test_lost_and_missing_workers_are_tags_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory = Memory(tmp_path)
    lost = "worker 1 on host h3 died with its node; the workers start again."
    with Recorder(memory, tmp_path, 10) as recorder:
        recorder.record(MissingWorkers(0))  # the first group has started: nothing changes
        for event in (LostWorker(lost), MissingWorkers(1), MissingWorkers(1), MissingWorkers(0)):
            recorder.record(event)
    assert memory.tags == [
        {"raytriever.lost_worker": lost},
        {"raytriever.missing_workers": "1"},
        {"raytriever.missing_workers": "0"},
    ]
    assert lost in capsys.readouterr().err


def test_the_headline_metrics_are_short_and_start_with_the_loss() -> None:
    evaluated = {
        "data_wait_seconds": 0.02,
        "step_seconds": 0.123456,
        "loss": 0.0123456,
        "queries_per_second": 1234.5,
        "gradient_norm": 1.0,
        "batch_auc": 0.98765,
        "learning_rate": 1e-5,
    }
    result = headline_metrics(evaluated)
    assert list(result.items()) == [
        ("loss", 0.0123),
        ("auc", 0.988),
        ("s/step", 0.123),
        ("pairs/s", 1230),
        ("wait %", 16.2),
    ]
    assert headline_metrics({"loss": 1.0, "learning_rate": 1e-5}) == {"loss": 1.0}


def test_the_status_before_and_between_steps_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(progress, "SHORT_SECONDS", 0.02)

    def reported() -> set[str]:
        lines: list[str] = []
        until = time.monotonic() + 10
        while not lines and time.monotonic() < until:
            time.sleep(0.02)
            lines = capsys.readouterr().err.splitlines()
        return {line.partition(":")[0] for line in lines}

    with Recorder(Memory(tmp_path), tmp_path, 10) as recorder:
        assert reported() == {"starting the workers"}
        recorder.record(StatusMessage("loading the encoder in the workers"))
        assert reported() == {"loading the encoder in the workers"}
        recorder.record(step_event(1))
        assert reported() == {"train"}
        recorder.record(StatusMessage("writing the model"))
        assert reported() == {"writing the model"}
    capsys.readouterr()
    time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_a_validation_is_logged_once_at_its_own_step_without_its_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = {"dev/ndcg_at_10": 0.5, "dev/auc": 0.75, "dev/other/auc": 0.5, "evaluation_seconds": 3.0}
    with Recorder(Memory(tmp_path), tmp_path, 10) as recorder:
        for step in range(1, 5):
            recorder.record(StepEvent(step, {"loss": 1 / step, "learning_rate": 0.1}))
        recorder.record(ValidationEvent(2, evaluated))
        recorder.record(ValidationEvent(2, {**evaluated, "dev/auc": 0.9}))  # a worker group that was restarted
        recorder.record(StepEvent(5, {"loss": 0.1, "learning_rate": 0.1}))
    assert "step 2: dev ndcg_at_10 0.5000, auc 0.7500\n" in capsys.readouterr().err
    assert [step for step, _ in read_curve(tmp_path, "loss")] == [1, 2, 3, 4, 5]
    assert {name: read_curve(tmp_path, name) for name in evaluated} == {
        name: [(2, value)] for name, value in evaluated.items()
    }
    steps = [json.loads(line)["step"] for line in (tmp_path / STEPS).read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 2, 5]
