"""Interface of experiment tracking: what a run logs (data sets, metric values, files, its git commit) and to whom."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


def git_commit(directory: Path) -> str | None:
    """The commit of the checkout that holds `directory`, with `-dirty` where files differ; None outside one."""

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


# The tag that says which stage made a run, so that the UI can be filtered by it.
STAGE = "raytriever.stage"


@dataclass(frozen=True)
class DatasetRecord:
    """The data a run was fed: its name, where it is, the digest of its content, and how much there is."""

    name: str
    source: str
    digest: str
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Point:
    """One value of one metric: at an optimiser step, at a time in milliseconds since 1970."""

    name: str
    value: float
    step: int
    milliseconds: int


@dataclass(frozen=True)
class Backlog:
    """What a run has told and its server does not have yet.

    Args:
        points: how many points wait.
        files: how many files.
        seconds: since the oldest of the points was told, 0 where none waits.
        failures: requests that failed since the run began or went on.
    """

    points: int = 0
    files: int = 0
    seconds: float = 0.0
    failures: int = 0


class Tracker(Protocol):
    """Where a run's settings, numbers and files go; one writer a run, on the driver."""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Log the resolved settings, the data and the tags; said again on a continued run, changes nothing."""

    def log(self, points: Sequence[Point]) -> None:
        """Log metric values."""

    def log_file(self, path: Path, folder: str = "") -> None:
        """Keep a file, or a directory with all it holds, as an artifact."""

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
    """A tracker that keeps beside the run what it is told, until its server has it; see `spool.Spool`."""

    @property
    def run_id(self) -> str | None:
        """The server's name of the run; None as long as the server has not made it."""

    def child(self, run_name: str, folder: Path) -> PersistentTracker:
        """A run within this one, with settings, numbers and files of its own, kept in a run directory of its own."""

    def backlog(self) -> Backlog:
        """What waits, of this run and of those within it."""


@contextmanager
def closing(tracker: Tracker) -> Iterator[None]:
    """Close a run when the block ends, as what it ends with says."""
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracker.finish(status)
