"""Settings of a run as one frozen value, and the YAML file that stores them.

A curriculum is a run with stages, each with its own data, loss and epochs. The run's own settings name the evaluation
and the initial encoder. The settings of a stage override those of the run. A stage starts from the weights of the stage
before it, but inherits none of that stage's settings. Section 4.3 of *Training dense retrievers with multiple positive
passages* is an example. Its first stage uses positives that a language model judged. Its second stage is one epoch with
positives that people judged.

`to_dict` and `from_dict` are strict: a misspelled field in a configuration file is an error, not a silent default. The
hash covers every setting."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from raytriever.core.errors import ConfigError, UserError, setting
from raytriever.core.paths import PathKind, fetch_paths
from raytriever.core.reading.json_and_yaml import read_yaml
from raytriever.core.setting_declarations import check_changed, check_options, read_option
from raytriever.core.store.commit import complete
from raytriever.core.unknown_names import check_known
from raytriever.data.data_settings import DataConfig
from raytriever.losses.loss_settings import LossConfig, check_loss
from raytriever.losses.named_losses import DISTILLATION_LOSSES
from raytriever.models.model_settings import ModelConfig
from raytriever.training.training_settings import (
    DEV_LOSS,
    MAY_CHANGE,
    RefreshConfig,
    TrainingConfig,
    ValidationConfig,
    check_refresh,
    check_validation,
)

STAGES = "stages"
# Folders of a run and of a sweep, with the run directories of its stages or trials.
TRIALS = "trials"
FOLDERS = (STAGES, TRIALS)
# Valid name of a run or a stage. The name is used for a directory and for a run in MLflow.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SECTIONS = {
    "data": DataConfig,
    "model": ModelConfig,
    "loss": LossConfig,
    "training": TrainingConfig,
    "refresh": RefreshConfig,
    "validation": ValidationConfig,
}
SECTION_OF = {field.name: section for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)}
# Settings that are the same in all stages, because the stages train one encoder, which is evaluated on one split.
_SHARED = {"model": ("model", "revision", "pooling", "similarity", "towers", "truncate_dim"), "data": ("test_split",)}
_LENGTHS = ("epochs", "max_steps")


@dataclass(frozen=True)
class Config:
    """All settings of a run or of one of its stages."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    refresh: RefreshConfig = field(default_factory=RefreshConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    name: str = ""  # name of a stage; empty for a run
    # Stages of a curriculum, in order, each with all its settings. A run without stages is one training. In a run with
    # stages, `data` is used only for evaluation, and `model` is the initial encoder.
    stages: tuple[Config, ...] = ()

    @property
    def trainings(self) -> tuple[Config, ...]:
        """The trainings of a run, in order: its stages, or the run itself."""
        return self.stages or (self,)

    @property
    def losses(self) -> str:
        """The losses in the order of training, as in `mw then infonce`."""
        return " then ".join(dict.fromkeys(training.loss.title for training in self.trainings))

    @property
    def hash(self) -> str:
        """Hash of all settings: 16 hexadecimal digits of a SHA-256."""
        return hash_of(to_dict(self))


def hash_of(values: Mapping[str, Any]) -> str:
    """Return the hash of plain values as 16 hexadecimal digits."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settings_of(training: Config) -> dict[str, Any]:
    """Return the settings of all sections by name. A name occurs in one section only."""
    return {name: getattr(getattr(training, section), name) for name, section in SECTION_OF.items()}


@contextmanager
def errors_of(training: Config) -> Iterator[None]:
    """Add the name of the stage to a `UserError` raised in the block."""
    try:
        yield
    except UserError as error:
        if not training.name:
            raise
        raise error.within(f"stage {training.name!r}") from error


def check_config(config: Config) -> None:
    """Check every setting against its declaration and against the other settings; raises `ConfigError`."""
    for training in (config, *config.stages):
        with errors_of(training):
            _check_training(training)


def check_config_paths(config: Config) -> None:
    """Raise `ConfigError` for a missing local path in the settings of a run or of one of its stages."""
    for training in (config, *config.stages):
        with errors_of(training):
            fetch_paths(training.data, training.model, training.loss, training.validation)


def _check_training(config: Config) -> None:
    for section in SECTIONS:
        check_options(getattr(config, section))
    check_changed(config.model)
    check_changed(config.training, only=["offload_optimizer"])
    check_loss(config.loss)
    if config.training.precision == "int8":
        remedy = "train in fp32 or bf16, and encode in int8 afterwards"
        raise ConfigError("int8 cannot be used for training", setting("precision"), remedy)
    size, workers = config.training.batch_size, config.training.workers[0]
    if size % workers:
        nearest = -(-size // workers) * workers
        remedy = f"give a multiple of {workers}, such as {nearest}, or another {setting('num_workers')}"
        raise ConfigError(f"{size} is not divisible by {workers} workers", setting("batch_size"), remedy)
    check_refresh(config.refresh, config.data, config.training.max_steps)
    _check_teacher(config)
    check_validation(config.validation, config.training)
    if config.training.best_metric != DEV_LOSS:
        from raytriever.evaluation.protocol import read_best_metric  # imports numpy, which `--help` does not need

        read_best_metric(config.training.best_metric)


def _check_teacher(config: Config) -> None:
    loss, teachers, datasets = f"{setting('loss')} {config.loss.title}", config.data.teachers, config.data.datasets
    if not config.loss.needs_teacher:
        if teachers:
            remedy = f"leave it out, or give {setting('loss')} {' or '.join(DISTILLATION_LOSSES)}"
            raise ConfigError(f"has no effect with {loss}", setting("teacher"), remedy)
        return
    if not teachers:
        remedy = "give the directory that `raytriever score` wrote"
        raise ConfigError(f"{loss} needs the scores of a teacher", setting("teacher"), remedy)
    if len(teachers) > len(datasets):
        what = f"there are {len(teachers)} teachers for {len(datasets)} data sets"
        raise ConfigError(what, setting("teacher"), "give one teacher for each data set, in the order of the data sets")
    if not config.data.negatives_per_query:
        remedy = "give at least 1, and at most the number of negatives that the teacher scored"
        raise ConfigError(f"{loss} needs hard negatives", setting("negatives_per_query"), remedy)
    if config.refresh.refresh_every:
        raise ConfigError(
            "no teacher has scored refreshed negatives", setting("refresh_every"), "leave it out, or give another loss"
        )


def to_dict(config: Config) -> dict[str, Any]:
    """Return all settings by section as plain values. A stage contains only the settings that it overrides."""
    base = {section: dataclasses.asdict(getattr(config, section)) for section in SECTIONS}
    stages = [{"name": stage.name, **differences(to_dict(stage), base)} for stage in config.stages]
    return base | ({STAGES: stages} if stages else {})


def differences(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the base.

    If `epochs` or `max_steps` differs, both are returned, because reading only one clears the other."""
    differing = {}
    for section in SECTIONS:
        own = {name for name, value in values[section].items() if value != base[section][name]}
        own |= set(_LENGTHS) if own.intersection(_LENGTHS) else set()
        if own:
            differing[section] = {name: value for name, value in values[section].items() if name in own}
    return differing


def difference(stored: Mapping[str, Any], current: Mapping[str, Any], of: str = "") -> str | None:
    """Describe the first setting that differs and changes the result of the run. Return None if no setting does.

    A moved data set or model is not a difference: the digests in the checkpoints tell whether its content is the same.

    Args:
        stored: settings in a run's file, by section.
        current: settings of this command, as `to_dict` returns them.
        of: text after the name of the setting, such as ` of stage 'warm'`.
    """
    sections = {name: settings for name, settings in current.items() if name != STAGES}
    for section, settings in sections.items():
        before = stored.get(section)
        before = before if isinstance(before, dict) else {}
        fields = {field.name: field for field in dataclasses.fields(SECTIONS[section])} if section in SECTIONS else {}
        for name, value in settings.items():
            if before.get(name) == value or name in MAY_CHANGE:
                continue
            kind = fields[name].metadata.get("reads") if name in fields else None
            if not (isinstance(kind, PathKind) and kind.is_moved(before.get(name), value)):
                return f"{section}.{name}{of} is {before.get(name)!r} there and {value!r} here"
    old, new = stored.get(STAGES), current.get(STAGES, [])
    old = [stage for stage in old if isinstance(stage, dict)] if isinstance(old, list) else []
    there, here = ([str(stage.get("name")) for stage in stages] for stages in (old, new))
    if there != here:
        return f"its stages are {', '.join(there) or 'none'} there and {', '.join(here) or 'none'} here"
    for stages in zip(old, new, strict=True):
        before, now = ({name: sections[name] | (stage.get(name) or {}) for name in sections} for stage in stages)
        if found := difference(before, now, f" of stage {stages[1]['name']!r}"):
            return found
    return None


def override(config: Config, layer: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return a configuration with the settings of a layer, `{section: {setting: value}}`, also in its stages."""

    def over(training: Config) -> Config:
        sections = {name: replace(getattr(training, name), **settings) for name, settings in layer.items()}
        return replace(training, **sections)

    return in_all(config, over)


def in_all(config: Config, change: Callable[[Config], Config]) -> Config:
    """Apply `change` to a configuration and to each of its stages."""
    return replace(change(config), stages=tuple(change(stage) for stage in config.stages))


def from_dict(
    content: Mapping[str, Any], where: str, base: Config | None = None, explicit: Mapping[str, Any] | None = None
) -> Config:
    """Build a configuration in layers: a base, the content of a file, explicit settings, and the stages of the file.

    Args:
        content: `{section: {setting: value}}`, and `stages`, a list of such mappings with a `name`.
        where: the file, for error messages.
        base: the lowest layer; the defaults when None.
        explicit: settings of a command line or a call, by name.
    """
    sections = {name: settings for name, settings in content.items() if name != STAGES}
    config = override(override(base or Config(), _layer(sections, where, STAGES)), _by_section(explicit or {}))
    return replace(config, stages=_read_stages(content[STAGES], where, config)) if STAGES in content else config


def _by_section(explicit: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    layer: dict[str, dict[str, Any]] = {}
    for name, value in explicit.items():
        check_known("setting", name, SECTION_OF, "train")
        layer.setdefault(SECTION_OF[name], {})[name] = value
    if "epochs" in explicit:
        layer["training"].setdefault("max_steps", None)  # explicit epochs override the steps of a recipe
    return _layer(layer, "train")


def _read_stages(content: Any, where: str, base: Config) -> tuple[Config, ...]:
    if not isinstance(content, list) or not content:
        raise ConfigError(f"`stages:` holds {content!r}", where, "give a list of stages, each with a `name:`")
    stages: dict[str, Config] = {}
    for number, settings in enumerate(content, 1):
        if not isinstance(settings, Mapping):
            raise ConfigError(f"stage {number} holds {settings!r}", where, "give `name:` and sections such as `loss:`")
        name = settings.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            problem = f"has the invalid name {name!r}" if "name" in settings else "has no name"
            raise ConfigError(f"stage {number} {problem}", where, "give a `name:` of letters, digits, '.', '_' and '-'")
        if name in stages:
            raise ConfigError(f"two stages have the name {name!r}", where, "give each stage a different name")
        layer = _layer({key: value for key, value in settings.items() if key != "name"}, f"{where}: stage {name!r}")
        for section, shared in _SHARED.items():
            for fixed in (name for name in layer.get(section, ()) if name in shared):
                problem = f"{section}.{fixed} must be the same in all stages"
                raise ConfigError(problem, f"{where}: stage {name!r}", "move it above `stages:`")
        # Explicit epochs replace the steps of the run, and explicit steps replace its epochs.
        lengths = [length for length in _LENGTHS if layer.get("training", {}).get(length) is not None]
        if len(lengths) == 1:
            layer["training"] = dict.fromkeys(_LENGTHS) | layer["training"]
        stages[name] = replace(override(base, layer), name=name)
    return tuple(stages.values())


def _layer(content: Mapping[str, Any], where: str, *other_sections: str) -> dict[str, dict[str, Any]]:
    """Check the settings and return them by section. Errors also suggest the names in `other_sections`."""
    layer = {}
    for name, settings in content.items():
        check_known("section", name, SECTIONS, where, *other_sections)
        if not isinstance(settings, Mapping):
            raise ConfigError(f"section {name!r} holds {settings!r}", where, "give `setting: value` lines")
        layer[name] = _typed(settings, SECTIONS[name], where)
    return layer


def _typed(settings: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    hints, fields = get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    for name, value in settings.items():
        check_known("setting", name, hints, where)
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
    """Convert a value to float: YAML reads `1` as an int, and `1e-5` as a string, because it has no dot."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return value
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value


def read_settings(path: Path) -> dict[str, Any]:
    """Return the unchecked content of a configuration file, without the hash that a run's file contains.

    Raises:
        StorageError: reading the file is not permitted, or its name is invalid.
        ConfigError: the file is missing, is not YAML, has a key twice, is nested too deep, or holds no sections.
    """
    try:
        complete(path)
        content = read_yaml(path, "correct the file", ConfigError)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", str(path), "give a YAML file") from error
    if not isinstance(content, Mapping):
        raise ConfigError("the file holds no sections", str(path), "give `data:`, `model:`, `loss:` or `training:`")
    return {name: value for name, value in content.items() if name != "hash"}


def load_config(path: Path, base: Config | None = None, explicit: Mapping[str, Any] | None = None) -> Config:
    """Return the settings of a file in layers; see `from_dict` and `read_settings` for arguments and errors."""
    return from_dict(read_settings(path), str(path), base, explicit)


def dump_config(config: Config) -> str:
    """Return the settings as YAML, with their hash."""
    import yaml

    return yaml.safe_dump({"hash": config.hash, **to_dict(config)}, sort_keys=False, allow_unicode=True)
