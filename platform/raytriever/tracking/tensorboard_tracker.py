"""TensorBoard tracker: one event file for each run, which a resumed run continues.

An event has the values of one step. The file itself says how many points it has, so a message that was written before
the process died is not written again, and an event that was cut off is removed before the next one.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raytriever.store.disk import check_writable, disk_errors
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun, TrackerClient, described, rows_of

FOLDER = "TENSORBOARD_LOGGING_DIR"
_HEADER = struct.Struct("<QI")  # bytes of the event, and the checksum of this number
_CHECKSUM = 4  # bytes after the event


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
        """See `TrackerClient`; the id of a run is its folder."""
        run_id = run_id or f"{re.sub(r'[^A-Za-z0-9_./-]', '_', run_name)}-{key[:8]}"
        return TensorboardRun(self._folder / run_id, run_id)


class TensorboardRun(RemoteRun):
    """One run: the only event file of a folder, whose path below that of all runs is its id."""

    def __init__(self, folder: Path, run_id: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.run_id = run_id
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            existing = sorted(folder.glob("events.out.tfevents.*"))
            file = existing[0] if existing else folder / f"events.out.tfevents.{int(time.time()):010d}.raytriever"
            self.points, size = _count_points(file) if existing else (0, 0)
            if existing:
                os.truncate(file, size)
        self._file, self._events, self._writer = file, Event, RecordWriter
        if not size:
            self._write([Event(wall_time=time.time(), file_version="brain.Event:2")])

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Write settings, data and tags for the page of hyperparameters, once."""
        if dataset is None:
            return
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        settings = hparams_pb(described(config, dataset, tags), trial_id=self.run_id)
        self._write([self._events(wall_time=time.time(), summary=settings)])

    def log(self, points: Sequence[Point]) -> None:
        """Write an event for each step and time; TensorBoard's values are float32."""
        events = []
        for row in rows_of(points):
            event = self._events(wall_time=row[0].milliseconds / 1000, step=row[0].step)
            for point in row:
                event.summary.value.add(tag=point.name, simple_value=point.value)
            events.append(event)
        self._write(events)

    def _write(self, events: Sequence[Any]) -> None:
        with disk_errors(self._file), self._file.open("ab") as stream:
            writer = self._writer(stream)
            for event in events:
                writer.write(event.SerializeToString())
            stream.flush()
            os.fdatasync(stream.fileno())


def _count_points(file: Path) -> tuple[int, int]:
    """Return the number of points of an event file, and the bytes of its whole events."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    points = size = 0
    with file.open("rb") as stream:
        while len(header := stream.read(_HEADER.size)) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                break
            content = stream.read(length + _CHECKSUM)
            if len(content) < length + _CHECKSUM:
                break
            values = Event.FromString(content[:length]).summary.value
            points += sum(value.HasField("simple_value") for value in values)
            size += _HEADER.size + len(content)
    return points, size
