"""Directory of a run with its state: new, interrupted or finished.

`config.yaml` is written first and `metrics.json` last, so the two files show the state. A directory with a run of other
settings, or with files that are no run, is never changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import expanded
from raytriever.core.reading.json_and_yaml import conform, read_yaml
from raytriever.core.store.commit import FORMAT, remove, write_atomically
from raytriever.core.store.disk import check_writable, files_below
from raytriever.losses.loss_settings import LossConfig
from raytriever.training.run_config import difference, read_settings

CONFIG, METRICS = "config.yaml", "metrics.json"
LOSSES = "losses"  # folder for copies of the files with the user's own losses
_REMEDY = f"give another {setting('output')}, or {setting('fresh', True)} to replace the run"


@dataclass(frozen=True)
class RunDirectory:
    """Directory of one run. Its state is `new`, `interrupted` or `finished`."""

    path: Path
    state: str

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], fresh: bool) -> RunDirectory:
        """Return the state of a directory, which need not exist. Nothing is written.

        Args:
            config: settings from `to_dict` that a run in the directory must have; if empty, nothing is compared.

        Raises:
            ConfigError: the directory holds a run with other settings, or files that are not a run.
            StorageError: the directory cannot be written.
        """
        check_writable(path)
        is_run = (path / CONFIG).is_file()
        if path.exists() and not is_run and not (path.is_dir() and not any(path.iterdir())):
            raise ConfigError("is not empty and holds no run", setting("output", path), "give another directory")
        if fresh or not is_run:
            return cls(path, "new")
        run = cls(path, "finished" if (path / METRICS).is_file() else "interrupted")
        if not config:
            return run
        content = read_yaml(path / CONFIG, _REMEDY, ConfigError)
        stored = conform(content, str(path / CONFIG), dict[str, Any], _REMEDY, error=ConfigError)
        if found := difference(stored, config):
            is_longer = found.startswith(("training.max_steps", "training.epochs")) and run.state == "finished"
            further = f" with {setting('model', path / 'model')} to train its model further" if is_longer else ""
            remedy = f"give another {setting('output')}{further}, or {setting('fresh', True)} to remove that run"
            raise ConfigError(f"holds a run with other settings ({found})", setting("output", path), remedy)
        return run

    def begin(self, config_yaml: str, losses: Iterable[LossConfig] = ()) -> None:
        """Create the directory, and write its configuration and the user's losses. A new run replaces an older run."""
        if self.state == "new" and (self.path / CONFIG).is_file():
            remove(self.path, whole=True)
        write_atomically(self.path / CONFIG, config_yaml)
        texts = dict[str, str]()
        for loss_file in (loss_file for loss in losses for loss_file in loss.files):
            name, text = loss_file.file.name, loss_file.read()
            while texts.setdefault(name, text) != text:  # a file with this name in another folder was copied already
                name = f"_{name}"
            (self.path / LOSSES).mkdir(exist_ok=True)
            write_atomically(self.path / LOSSES / name, text)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write `metrics.json`, which marks the run as finished. `evaluation/` has the metrics on the test split."""
        write_atomically(self.path / METRICS, json.dumps({"format": FORMAT, **facts}, indent=2) + "\n")


def recorded_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory; `{}` if there is no run or its `config.yaml` cannot be read."""
    with suppress(ConfigError):
        return read_settings(path / CONFIG) if (path / CONFIG).is_file() else {}
    return {}


def newer_datasets(path: Path, datasets: Iterable[str]) -> list[str]:
    """Return a line about each local data set that has a file newer than `metrics.json` of a finished run."""
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
