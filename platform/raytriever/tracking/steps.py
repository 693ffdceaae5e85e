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
from typing import Any, NamedTuple

from raytriever.storage import disk_errors
from raytriever.tracking.tracker import Point

STEPS = "steps.jsonl"


class Stretch(NamedTuple):
    """Points that stand one behind another in the file, and the byte behind the last of them."""

    points: list[Point]
    end: int


class Steps:
    """The points of one run; to be written by one process at a time, from any of its threads.

    Args:
        folder: the run directory; it need not exist before the first point is added.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / STEPS
        self._lock = threading.Lock()
        self._told: dict[str, bytearray] = {}  # by name, a bit for every step
        self.size = self.points = 0
        for end, entry in _entries(self._file):
            self.size = end
            for name in entry.get("measured", ()):
                self.points += self._mark(name, int(entry["step"]))

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

    def after(self, offset: int, most: int) -> Stretch:
        """The points from a byte on, whole lines, up to the one in which there are `most` of them."""
        found = Stretch([], offset)
        for end, entry in _entries(self._file, offset, self.size):
            found = Stretch([*found.points, *_points(entry)], end)
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


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    """The values of one metric by step, of a run directory that may still be written."""
    values = {int(e["step"]): float(e["measured"][name]) for _, e in _entries(folder / STEPS) if name in e["measured"]}
    return sorted(values.items())


def _entries(file: Path, offset: int = 0, size: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The whole lines from a byte on, each with the byte behind it; lines that hold no points are passed over."""
    if not file.is_file():
        return
    with file.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            offset += len(line)
            if not line.endswith(b"\n") or (size is not None and offset > size):
                return
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("measured"), dict) and "step" in entry:
                yield offset, entry


def _points(entry: dict[str, Any]) -> Sequence[Point]:
    # Runs of older versions have no time: theirs is the beginning of it.
    at = int(entry.get("milliseconds", 0))
    return [Point(name, float(value), int(entry["step"]), at) for name, value in entry["measured"].items()]
