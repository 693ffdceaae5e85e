"""Directory of a run, and its state: new, interrupted or finished.

`config.yaml` is written first and `metrics.json` last, so the two files show the state. A directory of a run with other
settings, or of no run at all, is never changed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from raytriever.config import Config, read_settings
from raytriever.errors import ConfigError, flag_of, setting
from raytriever.losses.config import LossConfig
from raytriever.paths import PathKind, expanded
from raytriever.reading.structured import conform, read_json, read_yaml
from raytriever.store.commit import FORMAT, remove, write_atomically
from raytriever.store.disk import check_writable, disk_errors, files_below
from raytriever.training.config import MAY_CHANGE

CONFIG, METRICS = "config.yaml", "metrics.json"
LOSSES = "losses"  # folder of the files of the user's own losses
_REMEDY = f"give another {setting('output')}, or {setting('fresh', True)} to replace the run"


class RunMetrics(TypedDict):
    """Content of `metrics.json`: metrics by system. The directory `evaluation/` has all results."""

    bm25: dict[str, float]
    before: dict[str, float]
    after: dict[str, float]


@dataclass(frozen=True)
class RunDirectory:
    """Directory of one run; its state is `new`, `interrupted` or `finished`."""

    path: Path
    state: str

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], fresh: bool) -> RunDirectory:
        """Check a directory with `check_run_directory`, before anything is written, and return its state."""
        check_run_directory(path, config, fresh)
        if fresh or not (path / CONFIG).is_file():
            return cls(path, "new")
        return cls(path, "finished" if (path / METRICS).is_file() else "interrupted")

    def begin(self, config_yaml: str, losses: Iterable[LossConfig] = ()) -> None:
        """Create the directory; write its configuration and the user's losses. A new run replaces an older one."""
        if self.state == "new" and (self.path / CONFIG).is_file():
            remove(self.path, whole=True)
        write_atomically(self.path / CONFIG, config_yaml)
        texts = dict[str, str]()
        for own in (own for loss in losses for own in loss.files):
            name, text = own.file.name, own.read()
            while texts.setdefault(name, text) != text:  # a file of this name in another folder
                name = f"_{name}"
            (self.path / LOSSES).mkdir(exist_ok=True)
            write_atomically(self.path / LOSSES / name, text)

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Write `metrics.json`, which marks the run as finished."""
        write_atomically(self.path / METRICS, json.dumps({"format": FORMAT, **metrics}, indent=2) + "\n")

    def metrics(self) -> RunMetrics:
        """Return the metrics of a finished run; raise `StorageError` if `metrics.json` is damaged or was changed."""
        with disk_errors(self.path, reading=True):
            remedy = "remove it and give the same command again, which evaluates the model"
            return read_json(self.path / METRICS, RunMetrics, remedy, format=FORMAT)


def check_run_directory(path: Path, config: Mapping[str, Any], fresh: bool) -> None:
    """Check that a run may be written to a directory, which need not exist."""
    check_writable(path)
    if path.exists() and not (path / CONFIG).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError("is not empty and holds no run", setting("output", path), "give another directory")
    if not fresh:
        check_same_settings(path, config)


def check_same_settings(path: Path, config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a directory holds a run with other settings.

    Without a revision of the model in these, that of the run is meant.
    """
    if not (path / CONFIG).is_file():
        return
    with disk_errors(path / CONFIG, reading=True):
        content = read_yaml(path / CONFIG, _REMEDY, ConfigError)
    stored = conform(content, str(path / CONFIG), dict[str, Any], _REMEDY, error=ConfigError)
    before, model = stored.get("model"), config.get("model")
    if isinstance(before, dict) and model and model.get("revision") is None:
        config = {**config, "model": {**model, "revision": before.get("revision")}}
    refuse_difference(path, _difference(stored, config))


def recorded_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory; none where there is no run, or `RunDirectory.open` refuses it."""
    with suppress(ConfigError):
        return read_settings(path / CONFIG) if (path / CONFIG).is_file() else {}
    return {}


def refuse_difference(path: Path, difference: str | None) -> None:
    """Raise `ConfigError` if the settings of the run in a directory differ."""
    if difference:
        is_longer = difference.startswith(("training.max_steps", "training.epochs")) and (path / METRICS).is_file()
        further = f" with {setting('model', path / 'model')} to train its model further" if is_longer else ""
        raise ConfigError(
            f"holds a run with other settings ({difference})",
            setting("output", path),
            f"give another {setting('output')}{further}, or {setting('fresh', True)} to remove that run",
        )


def newer_datasets(path: Path, datasets: Iterable[str]) -> list[str]:
    """Return a line about each data set on this disk with a file that is newer than a finished run."""
    finished, lines = (path / METRICS).stat().st_mtime, []
    for name in sorted(set(datasets)):
        folder = expanded(name)
        files = files_below(folder) if folder.is_dir() else []
        newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None and newest.stat().st_mtime > finished:
            lines.append(
                f"{newest} is newer than the finished run {path}; to train on it, give another {flag_of('output')}"
            )
    return lines


def _difference(stored: Mapping[str, Any], current: Mapping[str, Any]) -> str | None:
    """Return a text on the first setting that changes the result of the run; None if there is none.

    Data and models that were moved are the same setting: what a checkpoint says of their content decides.
    """
    defaults = Config()
    for section, settings in current.items():
        before = stored.get(section)
        before = before if isinstance(before, dict) else {}
        for name, value in settings.items():
            if before.get(name) == value or name in MAY_CHANGE:
                continue
            kind = _kind_of(getattr(defaults, section, None), name)
            if kind is None or not kind.is_moved(before.get(name), value):
                return f"{section}.{name} is {before.get(name)!r} there and {value!r} here"
    return None


def _kind_of(settings: Any, name: str) -> PathKind | None:
    """Return the kind of path that a setting reads; None if it is no path."""
    fields = dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ()
    kind = next((field.metadata.get("reads") for field in fields if field.name == name), None)
    return kind if isinstance(kind, PathKind) else None
