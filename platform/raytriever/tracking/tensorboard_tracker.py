"""TensorBoard tracker: one event file for each run. A resumed run writes a new file with all of its points."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raytriever.core.store.disk import check_writable
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun, TrackerClient, described, rows_of

FOLDER = "TENSORBOARD_LOGGING_DIR"


def events_folder() -> Path:
    """Return `TENSORBOARD_LOGGING_DIR`, or `tensorboard` in the current directory, as an absolute path."""
    return Path(os.environ.get(FOLDER) or "tensorboard").expanduser().absolute()


def check_folder() -> None:
    """Raise `StorageError` unless the folder of the events can be written."""
    folder = events_folder()
    check_writable(folder if folder.exists() else folder.parent)


class TensorboardClient(TrackerClient):
    """Folder of event files, one folder for each run."""

    name, title = "tensorboard", "TensorBoard"

    def __init__(self) -> None:
        self._folder = events_folder()
        self.address = str(self._folder)

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str, points: int) -> TensorboardRun:
        """See `TrackerClient`. The id of a run is its folder."""
        run_id = run_id or f"{re.sub(r'[^A-Za-z0-9_./-]', '_', run_name)}-{key[:8]}"
        return TensorboardRun(self._folder / run_id, run_id)


class TensorboardRun(RemoteRun):
    """One run: the newest event file in the folder `run_id`. Earlier event files there are emptied."""

    points = 0

    def __init__(self, folder: Path, run_id: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.run_id, self._event, self._writer = run_id, Event, RecordWriter
        self.view = f"tensorboard --logdir {shlex.quote(str(events_folder()))}"
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("events.out.tfevents.*"):
            os.truncate(file, 0)  # not removed, because TensorBoard would stop at a missing file
        self._file = folder / f"events.out.tfevents.{time.time_ns()}.raytriever"
        # If TensorBoard has read the earlier file, this event makes it forget the earlier points.
        start = Event(wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
        self._write([Event(wall_time=time.time(), file_version="brain.Event:2"), start])

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Write settings, data and tags for TensorBoard's page of hyperparameters, once."""
        if dataset is not None:
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb

            summary = hparams_pb(described(config, dataset, tags), trial_id=self.run_id)
            self._write([self._event(wall_time=time.time(), summary=summary)])

    def log(self, points: Sequence[Point]) -> None:
        """Write an event for each step and time. TensorBoard stores values as float32."""
        rows = rows_of(points)
        events = [self._event(wall_time=row[0].milliseconds / 1000, step=row[0].step) for row in rows]
        for event, row in zip(events, rows, strict=True):
            for point in row:
                event.summary.value.add(tag=point.name, simple_value=point.value)
        self._write(events)

    def _write(self, events: Sequence[Any]) -> None:
        with self._file.open("ab") as stream:
            for event in events:
                self._writer(stream).write(event.SerializeToString())
