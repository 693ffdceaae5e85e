"""A whole experiment as one frozen value, and the file it is kept in.

The settings of the parts are composed here; `to_dict` and `from_dict` are strict, so a misspelt field in a
configuration file is an error and not a silent default. The hash covers all that decides the result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError
from raytriever.losses.config import LossConfig
from raytriever.models.config import ModelConfig
from raytriever.options import check_options, did_you_mean
from raytriever.training.config import TrainingConfig


@dataclass(frozen=True)
class Config:
    """Everything that decides what a training run does."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over every setting."""
        text = json.dumps(to_dict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_config(config: Config) -> None:
    """Hold every setting to its declaration, and the settings to each other; raises `ConfigError`."""
    for section in dataclasses.fields(config):
        check_options(getattr(config, section.name))
    size, workers = config.training.batch_size, config.training.num_workers
    if size % workers:
        nearest = -(-size // workers) * workers
        raise ConfigError(
            f"{size} does not divide by {workers} workers",
            "--batch-size",
            f"give a multiple of {workers}, such as {nearest}, or another --num-workers",
        )


def to_dict(config: Config) -> dict[str, Any]:
    """Sections and settings as plain values."""
    return dataclasses.asdict(config)


def from_dict(content: Mapping[str, Any], where: str, base: Config | None = None) -> Config:
    """Lay a file's settings over a base configuration.

    Args:
        content: `{section: {setting: value}}`; what is not named keeps the base's value.
        where: the file, for error messages.
        base: the defaults when None.

    Raises:
        ConfigError: an unknown section or setting, or a value of the wrong type.
    """
    config = base or Config()
    sections = {section.name for section in dataclasses.fields(Config)}
    for name, settings in content.items():
        if name not in sections:
            raise ConfigError(f"unknown section {name!r}", where, did_you_mean(str(name), sections))
        if not isinstance(settings, Mapping):
            raise ConfigError(f"section {name!r} holds {settings!r}", where, "give `setting: value` lines")
        config = dataclasses.replace(config, **{name: _section(getattr(config, name), settings, where)})
    return config


def load_config(path: Path, base: Config | None = None) -> Config:
    """Read a YAML configuration file over a base."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", str(path), "give a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"is not YAML ({reason})", str(path), "mend the line it names") from error
    if not isinstance(content, Mapping):
        raise ConfigError("holds no sections", str(path), "give `data:`, `model:`, `loss:` or `training:`")
    return from_dict({k: v for k, v in content.items() if k != "hash"}, str(path), base)


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, with its hash."""
    import yaml

    return yaml.safe_dump({"hash": config.hash, **to_dict(config)}, sort_keys=False, allow_unicode=True)


def _section(section: Any, settings: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(type(section))
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(f"unknown setting {name!r}", where, did_you_mean(str(name), hints))
        kinds = getattr(hints[name], "__args__", (hints[name],))
        values[str(name)] = value = _number(value) if float in kinds else value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_KINDS[kind] for kind in kinds if kind is not type(None))
            raise ConfigError(f"{name} is {value!r}", where, f"give {wanted}")
    return dataclasses.replace(section, **values)


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _number(value: Any) -> Any:
    """A value as the float it spells: YAML reads `1` as an int, and `1e-5`, which has no dot, as a text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value
