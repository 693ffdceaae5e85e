"""A real MLflow server that may be down, or that loses responses to requests that it has served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raytriever.tracking.mlflow_tracker import MlflowServer
from raytriever.tracking.spool import Spool
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun

DATA = DatasetRecord("letters", "data/letters", "ab" * 32, {"documents": 160})


class FaultyServer:
    """Real server whose requests may fail."""

    name, title, address = "mlflow", "MLflow", "http://***@host"

    def __init__(self, server: MlflowServer) -> None:
        self._server = server
        self.is_down = False
        self.refused = ""  # name of files that it does not take
        self.lose_responses = 0
        self.requests = 0

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str, points: int) -> RemoteRun:
        return FaultyRun(self, self.call(self._server.connect, run_name, run_id, parent, key, points))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.requests += 1
        if self.is_down:
            raise ConnectionError("http://ada:secret@host is down")
        response = function(*arguments)
        if self.lose_responses:
            self.lose_responses -= 1
            raise ConnectionError("the response was lost")
        return response


class FaultyRun:
    """A run on the faulty server."""

    def __init__(self, faulty: FaultyServer, run: RemoteRun) -> None:
        self._server, self._run, self.run_id, self.points, self.view = faulty, run, run.run_id, run.points, run.view

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        self._server.call(self._run.describe, config, dataset, tags)

    def log(self, points: Sequence[Point]) -> None:
        self._server.call(self._run.log, points)

    def log_file(self, path: Path, folder: str = "") -> None:
        if self._server.refused and path.name.startswith(self._server.refused):
            raise PermissionError(f"{path.name} is refused")
        self._server.call(self._run.log_file, path, folder)

    def finish(self, status: str) -> None:
        self._server.call(self._run.finish, status)


def begin(faulty: FaultyServer, folder: Path, said: list[str] | None = None) -> Spool:
    """Start or resume a run on the faulty server."""
    folder.mkdir(exist_ok=True)
    return Spool.open([faulty], folder, "run", (said if said is not None else []).append)


def points(first: int, last: int) -> list[Point]:
    return [Point(name, step / 7, step, 1000 + step) for step in range(first, last + 1) for name in ("loss", "auc")]


def stored_points(server: MlflowServer, run_id: str | None, name: str = "loss") -> list[tuple[int, float, int]]:
    history = server.client.get_metric_history(run_id, name)
    return [(metric.step, metric.value, metric.timestamp) for metric in history]


def expected(last: int) -> list[tuple[int, float, int]]:
    return [(step, step / 7, 1000 + step) for step in range(1, last + 1)]
