"""Settings that decide a study's results, stored in `study.json`, and the check that a directory holds that study."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypedDict

from raytriever.data.sources import IR_DATASETS
from raytriever.errors import ConfigError, DataError, setting
from raytriever.reading.structured import read_json
from raytriever.store.commit import check_writable, disk_errors
from raytriever.store.remote import is_uri
from raytriever.studies.definition import Arm, Study

SETTINGS, DATA = "study.json", "data"


class _Settings(TypedDict):
    study: str
    scale: str
    arms: dict[str, Any]


def check_directory(output: Path, name: str, scale: str) -> None:
    """Refuse a directory that holds anything but this study at this scale. Nothing is written.

    Raises:
        ConfigError: the directory holds something else.
        StorageError: the directory cannot be written, or `study.json` is damaged.
    """
    check_writable(output)
    # An earlier call may have been killed while its recipe wrote the data.
    if not output.is_dir() or {path.name for path in output.iterdir()} <= {DATA}:
        return
    if not (output / SETTINGS).is_file():
        raise ConfigError("is not empty and holds no study", setting("output", output), "give another directory")
    stored = _read(output / SETTINGS)
    for key, requested in (("study", name), ("scale", scale)):
        if stored[key] != requested:
            raise ConfigError(
                f"holds another study ({key} {stored[key]}; this command asks for {requested})",
                setting("output", output),
                "give another directory",
            )


def settings_of(study: Study, scale: str, output: Path) -> dict[str, Any]:
    """Return the settings that decide the results, by arm; paths below `output` are relative to it."""
    prefix = str(output.resolve()) + os.sep

    def to_relative(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: to_relative(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [to_relative(one) for one in value]
        # A word without a slash names a split or a loss, even if a folder of that name exists.
        if isinstance(value, str) and os.path.dirname(value) and os.path.exists(value):
            return os.path.abspath(value).removeprefix(prefix)
        return value

    def settings_of_arm(arm: Arm) -> dict[str, Any]:
        return {
            "trained": to_relative(arm.curriculum.to_dict()) if arm.curriculum else [arm.model, arm.lengths],
            "measured": {
                one.name: to_relative(
                    [one.dataset, one.split, one.metrics, one.level, one.drop_own, one.extras]
                    + ([one.bm25_language] if one.bm25_language else [])
                    + ([{"cross_encoder": one.cross_encoder}] if one.cross_encoder else [])
                )
                for one in arm.datasets
            },
        }

    arms = {arm.name: settings_of_arm(arm) for arm in study.arms}
    settings = {"format": 1, "study": study.name, "scale": scale, "arms": arms}
    return dict(json.loads(json.dumps(settings)))  # equal to the settings that are read back


def check_same(output: Path, settings: dict[str, Any]) -> None:
    """Refuse a directory whose arms have other settings; raises `ConfigError`."""
    if not (output / SETTINGS).is_file():
        return
    stored, arms = _read(output / SETTINGS)["arms"], settings["arms"]
    for name in sorted(stored.keys() | arms.keys()):
        if _without_none(stored.get(name)) != _without_none(arms.get(name)):
            how = "is new" if name not in stored else "is missing now" if name not in arms else "differs"
            raise ConfigError(
                f"holds this study with other settings (arm {name} {how})",
                setting("output", output),
                "give another directory",
            )


def _without_none(settings: Any) -> Any:
    """Return settings without those that are None: an earlier version may not have had them."""
    if isinstance(settings, dict):
        return {key: _without_none(value) for key, value in settings.items() if value is not None}
    return settings


def check_data_exists(study: Study) -> None:
    """Refuse a study with a missing data set before its first arm is trained; raises `DataError`."""
    parts = [part.config.data.datasets for arm in study.arms if arm.curriculum for part in arm.curriculum.all_stages]
    locations = {location for locations in parts for location in locations}
    locations |= {one.dataset for arm in study.arms for one in arm.datasets}
    for location in sorted(locations):
        is_remote = is_uri(location) or location.startswith(IR_DATASETS)
        if not is_remote and os.path.dirname(location) and not os.path.exists(os.path.expanduser(location)):
            raise DataError(
                "does not exist",
                location,
                f"give {setting('data_root')}, the folder that holds it, or copy the data set there",
            )


def _read(file: Path) -> dict[str, Any]:
    with disk_errors(file, reading=True):
        return dict(read_json(file, _Settings, f"give another {setting('output')}"))
