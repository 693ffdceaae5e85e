"""The settings of the parts, composed.

`to_dict` and `from_dict` are strict, so a misspelt field in a configuration file is an error and not a silent
default. The hash covers all that decides the result.
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
from raytriever.errors import ConfigError
from raytriever.losses.config import DISTILLATION_LOSSES, LossConfig, check_loss
from raytriever.models.config import ModelConfig, check_lora
from raytriever.options import check_changed, check_options, did_you_mean, flag_of, read_option
from raytriever.training.config import DEV_LOSS, TrainingConfig
from raytriever.training.refresh.config import RefreshConfig, check_refresh
from raytriever.training.validation.config import ValidationConfig, check_validation


@dataclass(frozen=True)
class Config:
    """Everything that decides what one stretch of training does."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    refresh: RefreshConfig = field(default_factory=RefreshConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over every setting."""
        return hash_of(to_dict(self))


def hash_of(values: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over plain values."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_config(config: Config) -> None:
    """Hold every setting to its declaration, and the settings to each other; raises `ConfigError`."""
    for section in dataclasses.fields(config):
        check_options(getattr(config, section.name))
    check_lora(config.model)
    check_loss(config.loss)
    size, workers = config.training.batch_size, config.training.workers[0]
    if size % workers:
        nearest = -(-size // workers) * workers
        raise ConfigError(
            f"{size} does not divide by {workers} workers",
            "--batch-size",
            f"give a multiple of {workers}, such as {nearest}, or another --num-workers",
        )
    check_refresh(config.refresh, config.data, config.training.max_steps)
    _check_splits(config.data)
    _check_teacher(config)
    check_validation(config.validation, config.training)
    if config.training.best_metric != DEV_LOSS:
        from raytriever.evaluation.protocol import read_best_metric  # numpy, which the command line can do without

        read_best_metric(config.training.best_metric)


def _check_splits(data: DataConfig) -> None:
    """Refuse a split that is trained on or decides when to stop, and is measured; raises `ConfigError`."""
    splits = ("train_split", "dev_split", "test_split")
    for first, second in itertools.combinations(splits, 2):
        if getattr(data, first) == getattr(data, second) and not data.allow_split_overlap:
            raise ConfigError(
                f"is the split {getattr(data, first)!r} that {flag_of(second)} names too, so its figures would mislead",
                flag_of(first),
                "give another split, or --allow-split-overlap",
            )


def _check_teacher(config: Config) -> None:
    """Hold what learns from a teacher to the scores it needs; raises `ConfigError`."""
    check_changed(config.data, config.loss, only=["teacher"])
    how = config.loss.loss if config.loss.loss in DISTILLATION_LOSSES else "--soft-labels"
    if not config.loss.needs_teacher:
        return
    if not config.data.teachers:
        raise ConfigError(
            f"{how} learns from a teacher's scores", "--teacher", "name the directory that jobs/score.py wrote"
        )
    teachers, datasets = len(config.data.teachers), len(config.data.datasets)
    if teachers > datasets:
        raise ConfigError(f"{teachers} for {datasets} data sets", "--teacher", "give one for each, in their order")
    if not config.data.negatives_per_query:
        raise ConfigError(
            f"{how} learns from hard negatives", "--negatives-per-query", "give at least 1, as many as were scored"
        )
    if config.refresh.refresh_every:
        raise ConfigError("no teacher has scored negatives of the future", "--refresh-every", f"drop it, or {how}")


def to_dict(config: Config) -> dict[str, Any]:
    """Sections and settings as plain values."""
    return dataclasses.asdict(config)


def lay(config: Config, layer: Mapping[str, Mapping[str, Any]]) -> Config:
    """A configuration with the settings of a layer, `{section: {setting: value}}`, in place of its own."""
    sections = {name: dataclasses.replace(getattr(config, name), **settings) for name, settings in layer.items()}
    return dataclasses.replace(config, **sections)


def from_dict(content: Mapping[str, Any], where: str, base: Config | None = None, beside: Iterable[str] = ()) -> Config:
    """Lay a file's settings over a base configuration.

    Args:
        content: `{section: {setting: value}}`; what is not named keeps the base's value.
        where: the file, for error messages.
        base: the defaults when None.
        beside: what else may stand in the file and is read elsewhere, for error messages.

    Raises:
        ConfigError: an unknown section or setting, or a value of the wrong type.
    """
    config = base or Config()
    sections = {section.name for section in dataclasses.fields(Config)}
    layer = {}
    for name, settings in content.items():
        if name not in sections:
            raise ConfigError(f"unknown section {name!r}", where, did_you_mean(str(name), sections.union(beside)))
        if not isinstance(settings, Mapping):
            raise ConfigError(f"section {name!r} holds {settings!r}", where, "give `setting: value` lines")
        layer[name] = _typed(settings, type(getattr(config, name)), where)
    return lay(config, layer)


def _typed(settings: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(f"unknown setting {name!r}", where, did_you_mean(str(name), hints))
        if fields[name].metadata.get("reads") is not None:
            values[str(name)] = read_option(fields[name], value, f"{where}: {name}")
            continue
        kinds = getattr(hints[name], "__args__", (hints[name],))
        values[str(name)] = value = _number(value) if float in kinds else value
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_KINDS[kind] for kind in kinds if kind is not type(None))
            raise ConfigError(f"{name} is {value!r}", where, f"give {wanted}")
    return values


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _number(value: Any) -> Any:
    """A value as the float it spells: YAML reads `1` as an int, and `1e-5`, which has no dot, as a text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value
