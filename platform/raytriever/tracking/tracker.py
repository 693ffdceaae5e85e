"""Interface of experiment tracking: data sets, metric values, files and the git commit of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

STAGE = "raytriever.stage"  # tag with the stage that made a run; the UI can filter by it


def git_commit(directory: Path) -> str | None:
    """Return the commit of the checkout that holds `directory`, with `-dirty` if files differ; None outside of one."""

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


@dataclass(frozen=True)
class Point:
    """One value of one metric at an optimiser step, with its time in milliseconds since 1970."""

    name: str
    value: float
    step: int
    milliseconds: int


@dataclass(frozen=True)
class Backlog:
    """Data that a run has logged and its server does not have yet.

    Args:
        points: number of points.
        files: number of files.
        seconds: age of the oldest point, 0 without any.
        failures: requests that failed since the start of this call.
    """

    points: int = 0
    files: int = 0
    seconds: float = 0.0
    failures: int = 0


class Tracker(Protocol):
    """Receives the settings, metrics and files of a run from the driver, the only writer of the run."""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Log the resolved settings, the data and the tags. A resumed run may repeat the call; nothing changes."""

    def log(self, points: Sequence[Point]) -> None:
        """Log metric values."""

    def log_file(self, path: Path, folder: str = "") -> None:
        """Store a file, or a directory with its content, as an artifact."""

    def finish(self, status: str) -> None:
        """Close the run: `FINISHED`, `FAILED` or `KILLED`."""


class NullTracker(Tracker):
    """Tracker that keeps nothing."""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Ignore the settings."""

    def log(self, points: Sequence[Point]) -> None:
        """Ignore the values."""

    def log_file(self, path: Path, folder: str = "") -> None:
        """Ignore the file."""

    def finish(self, status: str) -> None:
        """Do nothing."""


class PersistentTracker(Tracker, Protocol):
    """Tracker that stores its data in the run directory until the server has it; see `spool.Spool`."""

    @property
    def run_id(self) -> str | None:
        """The server's id of the run; None before the server has created it."""

    def child(self, run_name: str, folder: Path) -> PersistentTracker:
        """Return a child run with its own settings, metrics, files and run directory."""

    def backlog(self) -> Backlog:
        """Return the unsent data of this run and its child runs."""


@contextmanager
def closing(tracker: Tracker) -> Iterator[None]:
    """Close a run at the end of the block, with the status that the block ends with."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)
