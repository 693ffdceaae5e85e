"""`steps.jsonl`: every point that a run told, in the order in which it was told, a line for those of one moment.

One file serves three: the curves of a run that goes on, the tracker that sends from it what the server does not have
yet, and whoever reads a run directory. A line that stands is durable; what a death tore is cut off before the next
line is written, and is told again, because no checkpoint that counts on it was committed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from raytriever.errors import StorageError
from raytriever.reading.structured import parse_json
from raytriever.storage import disk_errors
from raytriever.tracking.tracker import Point

STEPS = "steps.jsonl"
_REMEDY = "remove the line, or train again with --fresh"
_MOST = (1_000_000_000, 1 << 53)  # of the step, for each of which there is a bit in memory, and of the milliseconds


class PointBatch(NamedTuple):
    """Points that stand one behind another in the file, and the byte behind the last of them."""

    points: list[Point]
    end: int


class StepLog:
    """The points of one run; to be written by one process at a time, from any of its threads.

    Args:
        folder: the run directory; it need not exist before the first point is added.

    Raises:
        StorageError: a line is not as it was written.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / STEPS
        self._lock = threading.Lock()
        self._told: dict[str, bytearray] = {}  # by name, a bit for every step
        self.size = self.points = 0
        for end, entry in _entries(self._file):
            self.size = end
            for name in entry["measured"]:
                self.points += self._mark(name, entry["step"])

    def add(self, points: Iterable[Point]) -> int:
        """Make the points durable whose name and step were not told before; answers how many those were.

        A group of workers that began again repeats steps, and so does a continued run: the first value counts.

        Raises:
            StorageError: the disk is full or forbidden.
        """
        with self._lock:
            fresh = [point for point in points if self._mark(point.name, point.step)]
            if not fresh:
                return 0
            lines = "".join(
                json.dumps({"step": step, "milliseconds": at, "measured": {p.name: p.value for p in told}}) + "\n"
                for (step, at), told in groupby(fresh, lambda point: (point.step, point.milliseconds))
            ).encode()
            with disk_errors(self._file):
                descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
                with open(descriptor, "wb", buffering=0) as stream:
                    stream.truncate(self.size)  # what a death, or a disk that was full, tore
                    stream.seek(self.size)
                    view = memoryview(lines)
                    while view:
                        view = view[stream.write(view) :]
                    os.fdatasync(stream.fileno())
            self.size += len(lines)
            self.points += len(fresh)
            return len(fresh)

    def after(self, offset: int, most: int) -> PointBatch:
        """The points from a byte on, whole lines, up to the one in which there are `most` of them."""
        found = PointBatch([], offset)
        for end, entry in _entries(self._file, offset, self.size):
            found = PointBatch([*found.points, *_points(entry)], end)
            if len(found.points) >= most:
                break
        return found

    def count(self, offset: int) -> int:
        """How many points stand from a byte on."""
        return sum(len(entry["measured"]) for _, entry in _entries(self._file, offset, self.size))

    def _mark(self, name: str, step: int) -> bool:
        """Take a step of a metric as told; whether it was not before."""
        bits = self._told.setdefault(name, bytearray())
        place, bit = divmod(step, 8)
        if place >= len(bits):
            bits.extend(bytes(place + 1 - len(bits) + len(bits) // 8))
        told = bits[place] >> bit & 1
        bits[place] |= 1 << bit
        return not told


def read_curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """The values of one metric by step, of a run directory that may still be written; raises as `read_curves`."""
    return read_curves(folder, [name])[name]


def read_curves(folder: Path, names: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """Return the values of metrics by step, of a run directory that may still be written.

    Raises:
        StorageError: a line is not as it was written.
    """
    values: dict[str, dict[int, float]] = {name: {} for name in names}
    for _, entry in _entries(folder / STEPS):
        for name in names:
            if name in entry["measured"]:
                values[name][entry["step"]] = float(entry["measured"][name])
    return {name: sorted(found.items()) for name, found in values.items()}


class _Entry(TypedDict):
    step: int
    milliseconds: NotRequired[int]  # runs of older versions have none
    measured: dict[str, float]


def _entries(file: Path, offset: int = 0, size: int | None = None) -> Iterator[tuple[int, _Entry]]:
    """The whole lines from a byte on, each with the byte behind it.

    Lines that are no JSON are passed over: versions that did not cut off what a death tore have left such.
    """
    if not file.is_file():
        return
    with disk_errors(file, reading=True), file.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n") or (size is not None and offset > size):
                return
            try:
                found = json.loads(line)
            except ValueError:
                continue
            except RecursionError:
                found = None
            if not _is_entry(found):
                where = f"{file} at byte {start}"
                found = parse_json(line, where, _Entry, _REMEDY)
                raise StorageError("is torn or changed: its step or time is out of range", where, _REMEDY)
            yield offset, found


def _is_entry(found: Any) -> bool:
    """Whether a line fits `_Entry`: what `conform` finds too, in a tenth of its time, for there may be millions."""
    if type(found) is not dict or type(found.get("measured")) is not dict:
        return False
    for number, most in zip((found.get("step"), found.get("milliseconds", 0)), _MOST, strict=True):
        if type(number) is not int or not 0 <= number <= most:
            return False
    values = found["measured"].values()
    return all(type(value) is float or (type(value) is int and abs(value) < 1 << 63) for value in values)


def _points(entry: _Entry) -> Sequence[Point]:
    # Runs of older versions have no time: theirs is the beginning of it.
    at = entry.get("milliseconds", 0)
    return [Point(name, float(value), entry["step"], at) for name, value in entry["measured"].items()]
