"""Step log of a run, `steps.jsonl`: every logged point in order. The points of one step and time share a line.

Three readers use the file: a resumed run, which needs its curves; the outbox, which sends the points that a tracker
does not have yet; and any command that shows a run. A complete line is durable. If the process died while it wrote a
line, the partial line is removed before the next line is written. The resumed run repeats the step of this line,
because no later checkpoint was committed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from raytriever.core.errors import StorageError, disk_errors, setting
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.tracking.tracker import Point

STEPS = "steps.jsonl"
_REMEDY = f"remove the line, or give another {setting('output')}"
# Maximum step, because each step uses one bit of memory; and maximum time in milliseconds.
_LIMITS = (1_000_000_000, 1 << 53)


class PointBatch(NamedTuple):
    """Consecutive points of the file, and the byte offset after the last of them."""

    points: list[Point]
    end: int


class StepLog:
    """Step log of one run. Its directory may not exist yet. One process at a time may write it, from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / STEPS
        self._lock = threading.Lock()
        self._logged: dict[str, bytearray] = {}  # one bit for every step, by metric
        self.size = self.points = 0
        for end, entry in _entries(self._file):
            self.size = end
            for name in entry["metrics"]:
                self.points += self._mark(name, entry["step"])

    def add(self, points: Iterable[Point]) -> int:
        """Write the points, except those whose name and step were logged before. Return the number of points written. A
        restarted worker group and a resumed run repeat steps; the first value of a step is kept."""
        with self._lock:
            fresh = [point for point in points if self._mark(point.name, point.step)]
            if not fresh:
                return 0
            lines = "".join(
                json.dumps({"step": step, "milliseconds": at, "metrics": {p.name: p.value for p in group}}) + "\n"
                for (step, at), group in groupby(fresh, lambda point: (point.step, point.milliseconds))
            ).encode()
            with disk_errors(self._file):
                descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
                with open(descriptor, "wb", buffering=0) as stream:
                    stream.truncate(self.size)  # remove a partial line that a crash or a full disk left
                    stream.seek(self.size)
                    view = memoryview(lines)
                    while view:
                        view = view[stream.write(view) :]
                    os.fdatasync(stream.fileno())
            self.size += len(lines)
            self.points += len(fresh)
            return len(fresh)

    def read_from(self, offset: int, limit: int) -> PointBatch:
        """Return the points after a byte offset, in complete lines: at least `limit` points, or all until the end."""
        batch = PointBatch([], offset)
        for end, entry in _entries(self._file, offset, self.size):
            batch = PointBatch([*batch.points, *_points(entry)], end)
            if len(batch.points) >= limit:
                break
        return batch

    def count(self, offset: int) -> int:
        """Return the number of points after a byte offset."""
        return sum(len(entry["metrics"]) for _, entry in _entries(self._file, offset, self.size))

    def locate(self, points: int) -> tuple[int, int]:
        """Return how many points are in the lines that lie within the first `points` points, and the lines' end."""
        before = offset = 0
        for end, entry in _entries(self._file, 0, self.size):
            if before + len(entry["metrics"]) > points:
                break
            before, offset = before + len(entry["metrics"]), end
        return before, offset

    def _mark(self, name: str, step: int) -> bool:
        bits = self._logged.setdefault(name, bytearray())
        index, bit = divmod(step, 8)
        if index >= len(bits):
            bits.extend(bytes(index + 1 - len(bits) + len(bits) // 8))
        is_logged = bits[index] >> bit & 1
        bits[index] |= 1 << bit
        return not is_logged


def read_curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return the values of one metric by step; see `read_curves`."""
    return read_curves(folder, [name])[name]


def read_curves(folder: Path, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """Return the values of metrics by step. Another process may still write the run directory."""
    values: dict[str, dict[int, float]] = {name: {} for name in names}
    for _, entry in _entries(folder / STEPS):
        for name in names:
            if name in entry["metrics"]:
                values[name][entry["step"]] = float(entry["metrics"][name])
    return {name: sorted(points.items()) for name, points in values.items()}


def training_folders(folder: Path) -> list[Path]:
    """Return the folders with the step logs of a run: the folders of its stages in order, or the folder of the run."""

    def number(path: Path) -> tuple[int, str]:
        prefix = path.name.partition("-")[0]
        return (int(prefix) if prefix.isdigit() else 0, path.name)

    return sorted((path.parent for path in folder.glob(f"stages/*/{STEPS}")), key=number) or [folder]


def end_to_end(folders: Sequence[Path], name: str) -> list[tuple[int, float]]:
    """Return the curve of a metric over all stages. The steps of a stage are counted on from the stage before."""
    whole: list[tuple[int, float]] = []
    done = 0
    for folder in folders:
        curves = read_curves(folder, [name, "loss"])
        whole += [(done + step, value) for step, value in curves[name]]
        done += max((step for step, _ in curves["loss"]), default=0)
    return whole


class _Entry(TypedDict):
    step: int
    milliseconds: int
    metrics: dict[str, float]


def _entries(file: Path, offset: int = 0, size: int | None = None) -> Iterator[tuple[int, _Entry]]:
    """Yield the complete lines after a byte offset, each with the offset of its end. Lines that are not JSON are
    skipped, because a crash of the machine may leave a partly written line."""
    if not file.is_file():
        return
    with disk_errors(file), file.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n") or (size is not None and offset > size):
                return
            try:
                entry = json.loads(line)  # noqa: TID251 - what does not fit is given to `parse_json`
            except ValueError:
                continue
            except RecursionError:
                entry = None
            if not _is_entry(entry):
                where = f"{file} at byte {start}"
                entry = parse_json(line, where, _Entry, _REMEDY)
                raise StorageError("is damaged or changed: its step or time is out of range", where, _REMEDY)
            yield offset, entry


def _is_entry(entry: Any) -> bool:
    """Return whether a line has the types of `_Entry`. This check is ten times faster than `json_and_yaml.conform`:
    there may be millions of lines."""
    if type(entry) is not dict or type(entry.get("metrics")) is not dict:
        return False
    for number, limit in zip((entry.get("step"), entry.get("milliseconds")), _LIMITS, strict=True):
        if type(number) is not int or not 0 <= number <= limit:
            return False
    values = entry["metrics"].values()
    return all(type(value) is float or (type(value) is int and abs(value) < 1 << 63) for value in values)


def _points(entry: _Entry) -> Sequence[Point]:
    at = entry["milliseconds"]
    return [Point(name, float(value), entry["step"], at) for name, value in entry["metrics"].items()]
