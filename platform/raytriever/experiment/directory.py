"""A run's directory: new, to be continued, or finished, decided from what stands in it.

`config.yaml` is written first and `metrics.json` last, so the two tell how far a run came. A directory of other
settings, or one that is no run at all, is never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.errors import ConfigError
from raytriever.reading.structured import conform, read_json, read_yaml
from raytriever.storage import check_writable, disk_errors, write_atomically
from raytriever.training.config import MAY_CHANGE

CONFIG, METRICS = "config.yaml", "metrics.json"
_REMEDY = "give another --output, or --fresh to replace the run"


class DifferenceRow(TypedDict):
    """One test of a system against another on one metric."""

    metric: str
    model: str
    against: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    queries: int


class JudgedCounts(TypedDict):
    """How many documents are relevant, and how many of them are not in the corpus."""

    absent_relevant: int
    relevant: int
    unanswerable_queries: int


class AnalyserWarning(TypedDict):
    """The warning of BM25's analyser; an empty text where there is none."""

    warning: str


class RunMetrics(TypedDict):
    """The metrics of each system that a run measures, and what is said of them; earlier versions said nothing."""

    bm25: dict[str, float]
    before: dict[str, float]
    after: dict[str, float]
    significance: NotRequired[list[DifferenceRow]]
    judged: NotRequired[JudgedCounts]
    bm25_analyser: NotRequired[AnalyserWarning]


@dataclass(frozen=True)
class RunDirectory:
    """Where one run lives.

    Args:
        path: the directory.
        state: `new`, `interrupted` or `finished`.
    """

    path: Path
    state: str

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], fresh: bool) -> RunDirectory:
        """Look at a directory before anything is written.

        Args:
            path: may not exist yet.
            config: the resolved settings of this command.
            fresh: whether what an earlier run left there is to be removed when writing begins.

        Raises:
            ConfigError: it holds something else, or a run of other settings.
            StorageError: nothing can be written there.
        """
        check_writable(path)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return cls(path, "new")
        if not (path / CONFIG).is_file():
            raise ConfigError("is not empty and holds no run", f"--output {path}", "give another directory")
        if fresh:
            return cls(path, "new")
        different = _difference(_read_config(path / CONFIG), config)
        if different:
            raise ConfigError(
                f"holds a run with other settings ({different})",
                f"--output {path}",
                "give another --output, or --fresh to remove that run",
            )
        return cls(path, "finished" if (path / METRICS).is_file() else "interrupted")

    def begin(self, config_yaml: str) -> None:
        """Make the directory and write its configuration; a new run removes what an older one left."""
        if self.state == "new" and (self.path / CONFIG).is_file():
            shutil.rmtree(self.path)
        write_atomically(self.path / CONFIG, config_yaml)

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Write the figures that close the run."""
        write_atomically(self.path / METRICS, json.dumps(metrics, indent=2) + "\n")

    def metrics(self) -> RunMetrics:
        """The figures of a finished run; raises `StorageError` where `metrics.json` is not as it was written."""
        with disk_errors(self.path, reading=True):
            return read_json(self.path / METRICS, RunMetrics, "give --fresh to train again")


def _read_config(path: Path) -> dict[str, Any]:
    with disk_errors(path, reading=True):
        content = read_yaml(path, _REMEDY, ConfigError)
    return conform(content, str(path), dict[str, Any], _REMEDY, error=ConfigError)


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first setting in which two configurations would compute something else."""
    for section, settings in here.items():
        before = there.get(section)
        before = before if isinstance(before, dict) else {}
        for name, value in settings.items():
            if before.get(name) != value and name not in MAY_CHANGE:
                return f"{section}.{name} is {before.get(name)!r} there and {value!r} here"
    return None
