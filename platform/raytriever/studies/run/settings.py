"""Settings that decide a study's results, stored in `study.json`, and the check that a directory holds that study."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypedDict

from raytriever.data.sources import IR_DATASETS, is_uri
from raytriever.errors import ConfigError, DataError
from raytriever.reading.structured import read_json
from raytriever.storage import check_writable, disk_errors
from raytriever.studies.definition import Arm, Study

SETTINGS, DATA = "study.json", "data"


def check_directory(output: Path, name: str, scale: str) -> None:
    """Refuse a directory that holds anything but this study at this scale; leaves nothing.

    Raises:
        ConfigError: it holds something else.
        StorageError: it cannot be written, or `study.json` is torn.
    """
    check_writable(output)
    # A recipe may have been cutting data when an earlier call was killed.
    if not output.is_dir() or {path.name for path in output.iterdir()} <= {DATA}:
        return
    if not (output / SETTINGS).is_file():
        raise ConfigError("is not empty and holds no study", f"--output {output}", "give another directory")
    there = _read(output / SETTINGS)
    for what, wanted in (("study", name), ("scale", scale)):
        if there[what] != wanted:
            raise ConfigError(
                f"holds another study ({what} {there[what]} there and {wanted} here)",
                f"--output {output}",
                "give another directory",
            )


def settings_of(study: Study, scale: str, output: Path) -> dict[str, Any]:
    """What decides the figures: each arm's settings, with places below `output` as seen from there."""
    home = str(output.resolve()) + os.sep

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: told(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [told(one) for one in value]
        # A word without a slash names a split or a loss, whatever folders there are.
        if isinstance(value, str) and os.path.dirname(value) and os.path.exists(value):
            return os.path.abspath(value).removeprefix(home)
        return value

    def of(arm: Arm) -> dict[str, Any]:
        return {
            "trained": told(arm.curriculum.to_dict()) if arm.curriculum else [arm.model, arm.lengths],
            "measured": {
                one.name: told([one.dataset, one.split, one.metrics, one.level, one.drop_own, one.extras])
                for one in arm.measured
            },
        }

    whole = {"format": 1, "study": study.name, "scale": scale, "arms": {arm.name: of(arm) for arm in study.arms}}
    return dict(json.loads(json.dumps(whole)))  # as it is read back


def check_same(output: Path, settings: dict[str, Any]) -> None:
    """Refuse a directory whose arms are others; raises `ConfigError`."""
    if not (output / SETTINGS).is_file():
        return
    there = _read(output / SETTINGS)["arms"]
    for name in sorted(there.keys() | settings["arms"].keys()):
        if there.get(name) != settings["arms"].get(name):
            how = "is not there" if name not in there else "is not here" if name not in settings["arms"] else "differs"
            raise ConfigError(
                f"holds this study with other settings (arm {name} {how})",
                f"--output {output}",
                "give another directory",
            )


def check_places(study: Study) -> None:
    """Refuse a study whose last arm would find no data, before the first one is trained."""
    parts = [part.config.data.datasets for arm in study.arms if arm.curriculum for part in arm.curriculum.parts]
    named = {place for places in parts for place in places} | {
        one.dataset for arm in study.arms for one in arm.measured
    }
    for place in sorted(named):
        elsewhere = is_uri(place) or place.startswith(IR_DATASETS)
        if not elsewhere and os.path.dirname(place) and not os.path.exists(os.path.expanduser(place)):
            raise DataError("is not there", place, "give --data-root, the folder that holds it, or put it there")


class _Settings(TypedDict):
    study: str
    scale: str
    arms: dict[str, Any]


def _read(file: Path) -> dict[str, Any]:
    with disk_errors(file, reading=True):
        return dict(read_json(file, _Settings, "give another --output"))
