"""Whole runs with a real MLflow server that is killed and restarted, or whose database is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from postgresql import PostgreSQL
from processes import ended, free_port, wait_for

STEPS = 400


class Server:
    """`mlflow server` over one database, on one port, however often it is started."""

    def __init__(self, folder: Path, database: str = "") -> None:
        self._database = database or f"sqlite:///{folder}/server.db"
        self.port = free_port()
        self.folder, self.uri = folder, f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self.port)),
                *("--backend-store-uri", self._database),
                *("--artifacts-destination", str(self.folder / "artifacts")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(self.answers, 90)

    def answers(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.uri}/health", timeout=2).status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def on_postgresql(tmp_path: Path) -> Iterator[tuple[Server, PostgreSQL]]:
    database = PostgreSQL(tmp_path / "postgresql")
    server = Server(tmp_path, database.uri)
    yield server, database
    server.kill()
    database.stop()


@pytest.mark.slow
def test_a_run_loses_no_data_when_the_server_restarts(
    command_line: Callable[..., Any], server: Server, started: list[Any]
) -> None:
    check_that_nothing_is_lost(command_line(), server, started, server.kill, server.start)


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_run_loses_no_data_when_the_database_restarts(
    command_line: Callable[..., Any], on_postgresql: tuple[Server, PostgreSQL], started: list[Any]
) -> None:
    server, database = on_postgresql
    check_that_nothing_is_lost(command_line(), server, started, database.stop, database.start)


def check_that_nothing_is_lost(
    cli: Any, server: Server, started: list[Any], stop: Callable[[], None], start: Callable[[], None]
) -> None:
    """Train while what the server needs, or it itself, is away for a while; compare what it has with what was done."""
    server.start()
    run = cli.folder / "run"
    words = [*cli.settings, "--max-steps", str(STEPS), "--eval-steps", "20", "--patience", "99", "--output", "run"]
    process = cli.start("train", *words, MLFLOW_TRACKING_URI=server.uri)
    started.append(process)
    wait_for((run / "checkpoints" / "step-40").exists, 180, process)
    stop()
    # It continues, and its points are stored next to it.
    wait_for((run / "checkpoints" / "step-200").exists, 120, process)
    start()
    _, err = ended(process)
    assert err.count("the run continues, and its data is stored") == 1
    assert err.count("MLflow answers again after") == 1
    client = MlflowClient(server.uri)
    identity = json.loads((run / "run.json").read_text())
    tracked = client.get_run(identity["tracking_id"])
    assert tracked.info.status == "FINISHED"
    history = client.get_metric_history(tracked.info.run_id, "loss")
    assert [point.step for point in history] == list(range(1, STEPS + 1))
    logged = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["metrics"]["loss"] for line in logged if "loss" in line["metrics"]}
    assert {point.step: point.value for point in history} == losses
    assert {file.path for file in client.list_artifacts(tracked.info.run_id)} >= {"model", "figures", "report.html"}
    assert (identity["files"], identity["status"], identity["descriptions"]) == ([], None, [])
