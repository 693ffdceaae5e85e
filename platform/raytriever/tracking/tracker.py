"""What a run tells of itself, whoever keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


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


class Tracker(Protocol):
    """Where a run's settings, numbers and files go; one writer a run, on the driver."""

    @property
    def run_id(self) -> str:
        """The name under which the run can be continued."""

    def child(self, run_name: str, run_id: str | None = None) -> Tracker:
        """A run within this one, with settings, numbers and files of its own; `run_id` continues one."""

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Log the resolved settings, the data and the tags; said again on a continued run, changes nothing."""

    def log(self, points: Sequence[Point]) -> None:
        """Log metric values in one request."""

    def log_file(self, path: Path, folder: str = "") -> None:
        """Keep a file, or a directory with all it holds, as an artifact."""

    def finish(self, status: str) -> None:
        """Close the run: `FINISHED`, `FAILED` or `KILLED`."""


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
