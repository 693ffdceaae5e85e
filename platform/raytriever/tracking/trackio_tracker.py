"""Trackio tracker: rows in Trackio's database on this machine (`TRACKIO_DIR`), which `trackio show` opens.

The id of a row consists of its run and its first point. Trackio stores one row per id, so sending a row twice is
harmless. Trackio's `Run` is not used, because it writes from a thread that drops a batch after an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from raytriever.tracking.mlflow_tracker import PROJECT
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun, TrackerClient, described, rows_of


class TrackioClient(TrackerClient):
    """Trackio's database of this project."""

    name, title = "trackio", "Trackio"

    def __init__(self) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self.storage = SQLiteStorage
        self.address = str(SQLiteStorage.get_project_db_path(PROJECT))

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str, points: int) -> TrackioRun:
        """See `TrackerClient`. A new run gets `key` as its id."""
        return TrackioRun(self.storage, run_name, run_id or key, points)


class TrackioRun(RemoteRun):
    """One run in the database, which may already have some of its points."""

    view = "trackio show"

    def __init__(self, storage: Any, name: str, run_id: str, points: int) -> None:
        self._storage, self._name, self.run_id, self.points, self._next = storage, name, run_id, points, points
        self._config: dict[str, str | float] = {}

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Keep settings, data and tags. Trackio stores them with the next rows."""
        self._config |= described(config, dataset, tags)

    def log(self, points: Sequence[Point]) -> None:
        """Write a row for each step and time."""
        rows, ids = rows_of(points), list[str]()
        for row in rows:
            ids.append(f"{self.run_id}-{self._next}")
            self._next += len(row)
        self._storage.bulk_log(
            PROJECT,
            self._name,
            [{point.name: point.value for point in row} for row in rows],
            steps=[row[0].step for row in rows],
            timestamps=[datetime.fromtimestamp(row[0].milliseconds / 1000, UTC).isoformat() for row in rows],
            config=self._config,
            log_ids=ids,
            run_id=self.run_id,
        )
