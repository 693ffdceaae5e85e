"""Interface of experiment tracking: data sets, metric values, files and the git commit of a run."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

COMMAND = "raytriever.command"  # tag with the name of the command that made a run; the UI can filter by this tag


def git_commit(directory: Path) -> str | None:
    """Return the commit of the checkout around `directory`, with `-dirty` if files differ; None without a checkout."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *words], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    return f"{commit}-dirty" if git("status", "--porcelain", "--untracked-files=no") else commit


@dataclass(frozen=True)
class DatasetRecord:
    """Data set of a run: its name, its source, the digest of its content, and its sizes."""

    name: str
    source: str
    digest: str
    counts: Mapping[str, int]


class Point(NamedTuple):
    """One value of one metric at an optimizer step, with its time in milliseconds since 1970."""

    name: str
    value: float
    step: int
    milliseconds: int


def points_now(values: Mapping[str, float | None], step: int = 0) -> list[Point]:
    """Return values by name as points of a step at this time. Leave out values that are None or NaN."""
    now, numbers = (
        time.time_ns() // 1_000_000,
        {name: math.nan if value is None else value for name, value in values.items()},
    )
    return [Point(name, float(value), step, now) for name, value in numbers.items() if not math.isnan(value)]


@dataclass(frozen=True)
class Backlog:
    """Amount of data that a run has logged but its server does not have yet. `seconds` is the age of the oldest point.
    `failures` counts the requests that failed since this command began."""

    points: int = 0
    files: int = 0
    seconds: float = 0.0
    failures: int = 0

    def __add__(self, other: Backlog) -> Backlog:
        points, files, failures = self.points + other.points, self.files + other.files, self.failures + other.failures
        return Backlog(points, files, max(self.seconds, other.seconds), failures)


class Tracker:
    """Receiver of settings, metrics and files of a run. Only the driver calls it. This base class does nothing."""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Log the resolved settings, the data and the tags. A resumed run may repeat the call without effect. A
        call without a data set adds tags that are known only later; trackers without tags may ignore the call."""

    def log(self, points: Sequence[Point]) -> None:
        """Log metric values."""

    def log_file(self, path: Path, folder: str = "") -> None:
        """Store a file, or a directory with its content, as an artifact."""

    def finish(self, status: str) -> None:
        """Close the run with a status: `FINISHED`, `FAILED` or `KILLED`."""


class RemoteRun(Tracker):
    """One run at a tracker. The tracker may fail at any time.

    `run_id` is the run's id at the tracker, and `view` the command or address that shows it. `points` says how
    many of the run's first points the tracker had when the run was created or resumed."""

    run_id: str
    points: int
    view: str


class TrackerClient(Protocol):
    """A tracker: MLflow, W&B, TensorBoard or Trackio. Its attributes are the name that `--tracker` accepts, the
    title in messages, and the address or folder without secrets."""

    name: str
    title: str
    address: str

    def connect(self, run_name: str, run_id: str | None, parent: str | None, key: str, points: int) -> RemoteRun:
        """Create or resume a run. Raise an error if the tracker does not answer.

        Args:
            run_id: run to resume; None for a new run.
            key: unique text by which the run is found if the server's response to its creation was lost.
            points: number of points that the tracker has confirmed. If a tracker cannot count its points, the returned
                run has this number.
        """


def described(
    params: Mapping[str, str], dataset: DatasetRecord | None, tags: Mapping[str, str]
) -> dict[str, str | float]:
    """Return settings, data and tags in one mapping, for trackers that have only settings; parse numbers."""
    flat = {**params, **tags}
    if dataset is not None:
        data = {"source": dataset.source, "digest": dataset.digest, **{k: str(v) for k, v in dataset.counts.items()}}
        flat |= {f"dataset.{dataset.name}.{name}": value for name, value in data.items()}
    return {name: _number(value) for name, value in flat.items()}


def _number(text: str) -> str | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def rows_of(points: Sequence[Point]) -> list[list[Point]]:
    """Group consecutive points that have the same step and time."""
    return [list(row) for _, row in groupby(points, lambda point: (point.step, point.milliseconds))]


@contextmanager
def closing(tracker: Tracker) -> Iterator[None]:
    """Close a run at the end of the block, with a status that says how the block ended."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)
