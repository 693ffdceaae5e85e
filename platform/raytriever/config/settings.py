"""Settings of one training, composed of the settings of its components.

`to_dict` and `from_dict` are strict: a misspelt field in a configuration file is an error, not a silent default. The
hash covers every setting that affects the result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from raytriever.data.config import DataConfig
from raytriever.errors import ConfigError, setting
from raytriever.losses.config import DISTILLATION_LOSSES, LossConfig, check_loss
from raytriever.models.config import ModelConfig
from raytriever.options import check_changed, check_options, did_you_mean, read_option
from raytriever.training.config import (
    DEV_LOSS,
    RefreshConfig,
    TrainingConfig,
    ValidationConfig,
    check_refresh,
    check_validation,
)


@dataclass(frozen=True)
class Config:
    """All settings of one stage of training."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    refresh: RefreshConfig = field(default_factory=RefreshConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    @property
    def hash(self) -> str:
        """Hash of all settings, 16 hexadecimal digits."""
        return hash_of(to_dict(self))


def hash_of(values: Mapping[str, Any]) -> str:
    """Return the hash of plain values, 16 hexadecimal digits."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_config(config: Config) -> None:
    """Check every setting against its declaration and against the other settings; raises `ConfigError`."""
    for section in dataclasses.fields(config):
        check_options(getattr(config, section.name))
    check_changed(config.model)
    check_changed(config.training, only=["offload_optimizer"])
    check_loss(config.loss)
    if config.training.precision == "int8":
        raise ConfigError(
            "int8 has no gradients", setting("precision"), "train in fp32 or bf16, and encode in int8 afterwards"
        )
    size, workers = config.training.batch_size, config.training.workers[0]
    if size % workers:
        nearest = -(-size // workers) * workers
        raise ConfigError(
            f"{size} is not divisible by {workers} workers",
            setting("batch_size"),
            f"give a multiple of {workers}, such as {nearest}, or another {setting('num_workers')}",
        )
    check_refresh(config.refresh, config.data, config.training.max_steps)
    _check_splits(config.data)
    _check_teacher(config)
    check_validation(config.validation, config.training)
    if config.training.best_metric != DEV_LOSS:
        from raytriever.evaluation.protocol import read_best_metric  # imports numpy, which `--help` does not need

        read_best_metric(config.training.best_metric)


def _check_splits(data: DataConfig) -> None:
    """Raise `ConfigError` if two of the splits for training, validation and evaluation are the same."""
    splits = ("train_split", "dev_split", "test_split")
    for first, second in itertools.combinations(splits, 2):
        if getattr(data, first) == getattr(data, second) and not data.allow_split_overlap:
            raise ConfigError(
                f"the split {getattr(data, first)!r} is also that of {setting(second)}, so the metrics would mislead",
                setting(first),
                f"give another split, or {setting('allow_split_overlap', True)}",
            )


def _check_teacher(config: Config) -> None:
    """Raise `ConfigError` if a setting needs the scores of a teacher that the other settings do not provide."""
    if not config.loss.needs_teacher:
        if config.data.teachers:
            raise ConfigError(
                f"has no effect with {setting('loss')} {config.loss.title}",
                setting("teacher"),
                f"leave it out, or give {setting('loss')} {' or '.join(DISTILLATION_LOSSES)}",
            )
        return
    if not config.data.teachers:
        raise ConfigError(
            f"{setting('loss')} {config.loss.title} needs the scores of a teacher",
            setting("teacher"),
            "give the directory that `raytriever score` wrote",
        )
    teachers, datasets = len(config.data.teachers), len(config.data.datasets)
    if teachers > datasets:
        raise ConfigError(
            f"{teachers} teachers for {datasets} data sets",
            setting("teacher"),
            "give one teacher for each data set, in order",
        )
    if not config.data.negatives_per_query:
        raise ConfigError(
            f"{setting('loss')} {config.loss.title} needs hard negatives",
            setting("negatives_per_query"),
            "give at least 1, at most the number of scored negatives",
        )
    if config.refresh.refresh_every:
        raise ConfigError(
            "no teacher has scored refreshed negatives", setting("refresh_every"), "remove it, or give another loss"
        )


def to_dict(config: Config) -> dict[str, Any]:
    """Return sections and settings as plain values."""
    return dataclasses.asdict(config)


def override(config: Config, layer: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return a configuration in which the settings of a layer, `{section: {setting: value}}`, replace its own."""
    sections = {name: dataclasses.replace(getattr(config, name), **settings) for name, settings in layer.items()}
    return dataclasses.replace(config, **sections)


def from_dict(
    content: Mapping[str, Any], where: str, base: Config | None = None, other_names: Iterable[str] = ()
) -> Config:
    """Override a base configuration with the settings of a file.

    Args:
        content: `{section: {setting: value}}`; other settings keep the value of the base.
        where: the file, for error messages.
        base: the defaults when None.
        other_names: names of further valid sections, which the caller reads; for error messages.

    Raises:
        ConfigError: an unknown section or setting, or a value of the wrong type.
    """
    config = base or Config()
    sections = {section.name for section in dataclasses.fields(Config)}
    layer = {}
    for name, settings in content.items():
        if name not in sections:
            raise ConfigError(f"unknown section {name!r}", where, did_you_mean(str(name), sections.union(other_names)))
        if not isinstance(settings, Mapping):
            raise ConfigError(f"section {name!r} holds {settings!r}", where, "give `setting: value` lines")
        layer[name] = _typed(settings, type(getattr(config, name)), where)
    return override(config, layer)


def _typed(settings: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(f"unknown setting {name!r}", where, did_you_mean(str(name), hints))
        kinds = getattr(hints[name], "__args__", (hints[name],))
        if value is None and type(None) in kinds:
            values[str(name)] = None
            continue
        if fields[name].metadata.get("reads") is not None:
            values[str(name)] = read_option(fields[name], value, f"{where}: {name}")
            continue
        values[str(name)] = value = _number(value) if float in kinds else value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(_KINDS[kind] for kind in kinds if kind is not type(None))
            raise ConfigError(f"{name} is {value!r}", where, f"give {expected}")
    return values


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _number(value: Any) -> Any:
    """Return a value as a float: YAML reads `1` as an int, and `1e-5`, which has no dot, as a string."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value
