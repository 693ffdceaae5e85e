"""What Ray Train's controller receives."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import cloudpickle
from ray.train import ControllerError

from raytriever.cluster.events_and_restarts import InlineEventQueue
from raytriever.cluster.train import trainer
from raytriever.cluster.train.train_worker import WorkerJob
from raytriever.training.run_config import Config


def test_the_controller_does_not_import_what_training_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "count_gpus", lambda: 0)
    job = WorkerJob(
        config=Config(),
        datasets=(),
        negatives=None,
        total_steps=1,
        folder=tmp_path,
        queue=InlineEventQueue(print),
        driver=None,  # type: ignore[arg-type]
    )
    made = trainer._trainer(job, tmp_path)
    sent = made.train_run_context, made._create_default_callbacks()
    assert b"raytriever.cluster.train.controller_callbacks" in cloudpickle.dumps(sent)
    assert b"raytriever.cluster.train.train_worker" not in cloudpickle.dumps(sent)
    assert b"raytriever.cluster.train.train_worker" in cloudpickle.dumps(made._get_train_func())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Gloo connectFullMesh failed with [tcp/pair.cc:144] timed out, remote=[127.0.1.1]:4711", " (at 127.0.1.1)"),
        ("The client socket has failed to connect to 10.0.0.2:29500 (errno: 111 - Connection refused).", ""),
        ("Last error:\nsocketStartConnect: Connect to 10.0.0.2<4711> failed : Connection refused", ""),
    ],
)
def test_workers_that_do_not_reach_each_other_are_one_line(text: str, address: str) -> None:
    error = trainer._start_error(ControllerError(RuntimeError(text)))
    assert str(error).startswith(f"the Ray cluster: has workers that cannot reach each other{address}; open all TCP")


def test_another_refused_connection_is_not_taken_for_one_between_workers() -> None:
    failure = ControllerError(OSError("mlflow.example:5000: [Errno 111] Connection refused"))
    assert trainer._start_error(failure) is failure
