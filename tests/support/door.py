"""A real MLflow server behind a door that may be shut, or that loses the answer to what it let in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.outbox import Outbox, OutboxSender, Server
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker import DatasetRecord, Point

DATA = DatasetRecord("letters", "data/letters", "ab" * 32, {"documents": 160})


class Door:
    """The way to a real server."""

    def __init__(self, server: MlflowServer) -> None:
        self._server = server
        self.shut = False
        self.lose_answers = 0
        self.asked = 0

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str) -> Server:
        return Passage(self, self.through(self._server.connect, run_name, run_id, parent, key))

    def through(self, call: Callable[..., Any], *words: Any) -> Any:
        self.asked += 1
        if self.shut:
            raise ConnectionError("http://ada:secret@door is shut")
        answer = call(*words)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ConnectionError("the answer was lost")
        return answer


class Passage:
    """A run behind the door."""

    def __init__(self, door: Door, run: Server) -> None:
        self._door, self._run, self.run_id = door, run, run.run_id

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        self._door.through(self._run.describe, config, dataset, tags)

    def log(self, points: Sequence[Point]) -> None:
        self._door.through(self._run.log, points)

    def log_file(self, path: Path, folder: str = "") -> None:
        self._door.through(self._run.log_file, path, folder)

    def finish(self, status: str) -> None:
        self._door.through(self._run.finish, status)


def begin(door: Door, folder: Path, said: list[str] | None = None) -> Spool:
    """As `Spool.open` does, through the door."""
    folder.mkdir(exist_ok=True)
    outbox = Outbox(folder)
    outbox.begin("run")
    outbox.connect(door.connect)
    say = (said if said is not None else []).append
    return Spool(outbox, OutboxSender(door.connect, say, "http://***@door"), say)


def points(first: int, last: int) -> list[Point]:
    return [Point(name, step / 7, step, 1000 + step) for step in range(first, last + 1) for name in ("loss", "auc")]


def kept(server: MlflowServer, run_id: str | None, name: str = "loss") -> list[tuple[int, float, int]]:
    history = server.client.get_metric_history(run_id, name)
    return [(metric.step, metric.value, metric.timestamp) for metric in history]


def expected(last: int) -> list[tuple[int, float, int]]:
    return [(step, step / 7, 1000 + step) for step in range(1, last + 1)]


def wait_for(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
