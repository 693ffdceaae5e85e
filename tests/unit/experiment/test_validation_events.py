"""Validation events, which arrive after events of later steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from raytriever.cluster.event_queue import StepEvent, ValidationEvent
from raytriever.experiment.recorder import Recorder
from raytriever.tracking.steps import STEPS, StepLog, read_curve
from raytriever.tracking.tracker import Backlog, Point


class Kept:
    """Tracker that stores points in the run directory."""

    def __init__(self, folder: Path) -> None:
        self.steps = StepLog(folder)

    def log(self, points: Sequence[Point]) -> None:
        self.steps.add(points)

    def backlog(self) -> Backlog:
        return Backlog()


def test_a_validation_is_logged_once_at_its_own_step_without_its_data_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {"dev/ndcg_at_10": 0.5, "dev/auc": 0.75, "dev/other/auc": 0.5, "evaluation_seconds": 3.0}
    with Recorder(Kept(tmp_path), tmp_path, 10) as recorder:  # type: ignore[arg-type]
        for step in range(1, 5):
            recorder.record(StepEvent(step, {"loss": 1 / step, "learning_rate": 0.1}))
        recorder.record(ValidationEvent(2, measured))
        recorder.record(ValidationEvent(2, {**measured, "dev/auc": 0.9}))  # a worker group that was restarted
        recorder.record(StepEvent(5, {"loss": 0.1, "learning_rate": 0.1}))
    assert "step 2: dev ndcg_at_10 0.5000, auc 0.7500\n" in capsys.readouterr().err
    assert [step for step, _ in read_curve(tmp_path, "loss")] == [1, 2, 3, 4, 5]
    assert {name: read_curve(tmp_path, name) for name in measured} == {
        name: [(2, value)] for name, value in measured.items()
    }
    steps = [json.loads(line)["step"] for line in (tmp_path / STEPS).read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 2, 5]
