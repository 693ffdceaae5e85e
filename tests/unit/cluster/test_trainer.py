"""What Ray Train's controller receives."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import cloudpickle

from raytriever.cluster.event_queue import InlineEventQueue
from raytriever.cluster.train import trainer
from raytriever.cluster.train.worker import WorkerJob
from raytriever.config import Config


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
    made = trainer._trainer(job, (1, 1), tmp_path, in_process=False, gpus=1.0)
    sent = made.train_run_context, made._create_default_callbacks()
    assert b"raytriever.cluster.train.controller" in cloudpickle.dumps(sent)
    assert b"raytriever.cluster.train.worker" not in cloudpickle.dumps(sent)
    assert b"raytriever.cluster.train.worker" in cloudpickle.dumps(made._get_train_func())
