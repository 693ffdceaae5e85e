"""Curriculum of a training: stages, each with its own data, loss and epochs, and the YAML file of an experiment.

The settings of the run give the evaluation and the encoder at the start. The settings of each stage override them,
never those of the stage before it. A stage continues from the weights of the stage before it. Section 4.3 of *Training
dense retrievers with multiple positive passages* trains so: first on positives that a language model judged, then for
one epoch on positives that people judged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from raytriever.config.settings import Config, check_config, from_dict, hash_of, override, to_dict
from raytriever.errors import ConfigError, UserError, setting
from raytriever.options import needs_of, without_effect
from raytriever.paths import fetch_paths
from raytriever.reading.structured import read_yaml
from raytriever.store.commit import complete
from raytriever.store.disk import disk_errors
from raytriever.training.config import MAY_CHANGE

STAGES = "stages"
TRIALS = "trials"  # folder of a sweep that holds the run directory of each trial
# Valid name of a run or a stage, which names a directory and a run in MLflow.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Settings that all stages share, because one encoder is trained and measured on one split.
_SHARED = {"model": ("model", "revision", "pooling", "similarity", "towers", "truncate_dim"), "data": ("test_split",)}
_LENGTHS = ("epochs", "max_steps")
# Settings that the name of a run has in any case, or that name the same thing.
_NAMED = ("dataset", "model", "loss", "seed", "revision")
_MOST_SHOWN, _LONGEST_NAME = 6, 200  # settings, and characters, of a run's name at a tracker


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Args:
        name: matches `NAME`; empty for the only stage of a run without a curriculum.
        config: all its settings; `config.model.model` is the encoder of the run, before any stage.
    """

    name: str
    config: Config


@dataclass(frozen=True)
class Curriculum:
    """Settings of a run and of its stages.

    Args:
        base: settings of the run: its `data` is evaluated, and its `model` is the encoder at the start.
        stages: the stages in order; a run without stages trains with `base`.
    """

    base: Config
    stages: tuple[Stage, ...] = ()

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """The stages, or the run itself as one stage."""
        return self.stages or (Stage("", self.base),)

    @property
    def losses(self) -> str:
        """The losses in the order of training, joined by `then`."""
        return " then ".join(dict.fromkeys(stage.config.loss.title for stage in self.all_stages))

    @property
    def hash(self) -> str:
        """Hash of all settings, 16 hexadecimal digits; that of `base` if there are no stages."""
        return hash_of(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return sections and settings as plain values, and the differing settings of each stage."""
        base = to_dict(self.base)
        if not self.stages:
            return base
        return base | {
            STAGES: [{"name": stage.name, **_differences(to_dict(stage.config), base)} for stage in self.stages]
        }


def read_stages(content: Any, where: str, base: Config) -> tuple[Stage, ...]:
    """Override the settings of a run with those of each stage in a file.

    Args:
        content: a list of `{"name": ..., section: {setting: value}}`.
        where: the file, for error messages.

    Raises:
        ConfigError: the content is not a list, a stage has no name or the name of another stage, a section or setting
            is unknown, a value has the wrong type, or a setting must be the same in all stages.
    """
    if not isinstance(content, list) or not content:
        raise ConfigError(f"`stages:` holds {content!r}", where, "give a list of stages, each with a `name:`")
    stages: dict[str, Stage] = {}
    for number, settings in enumerate(content, 1):
        if not isinstance(settings, Mapping):
            raise ConfigError(f"stage {number} holds {settings!r}", where, "give `name:` and sections such as `loss:`")
        name = settings.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            problem = f"has the invalid name {name!r}" if "name" in settings else "has no name"
            raise ConfigError(f"stage {number} {problem}", where, "give `name:`, of letters, digits, '.', '_' and '-'")
        if name in stages:
            raise ConfigError(f"two stages have the name {name!r}", where, "give each stage a different name")
        sections = {section: values for section, values in settings.items() if section != "name"}
        stages[name] = Stage(name, _stage_config(base, sections, f"{where}: stage {name!r}"))
    return tuple(stages.values())


def check_curriculum(curriculum: Curriculum) -> None:
    """Check the settings of the run and of every stage; raises `ConfigError`."""
    for stage in (Stage("", curriculum.base), *curriculum.stages):
        with stage_errors(stage):
            check_config(stage.config)


@contextmanager
def stage_errors(stage: Stage) -> Iterator[None]:
    """Add the name of the stage to a `UserError` that is raised in the context."""
    try:
        yield
    except UserError as error:
        if not stage.name:
            raise
        raise error.within(f"stage {stage.name!r}") from error


def check_curriculum_paths(curriculum: Curriculum) -> None:
    """Raise `ConfigError` for a missing local path in the settings of a run or of one of its stages."""
    for stage in (Stage("", curriculum.base), *curriculum.stages):
        with stage_errors(stage):
            fetch_paths(stage.config.data, stage.config.model, stage.config.loss, stage.config.validation)


def check_explicit_settings(
    curriculum: Curriculum, explicit: Iterable[str], search: Any = None, varied: Collection[str] = ()
) -> None:
    """Raise `ConfigError` for an explicit setting that has no effect in any stage.

    Args:
        explicit: names of the settings that the user gave.
        search: the settings of a search.
        varied: names of the settings that the search varies; some trial may meet a need for them.
    """
    sections = [field.name for field in fields(Config)]
    kinds = [type(getattr(curriculum.base, name)) for name in sections] + ([type(search)] if search else [])
    needs = {name: each for name, each in needs_of(*kinds).items() if not any(need.name in varied for need in each)}
    extra = vars(search) if search else {}
    names = sorted(explicit)
    errors = [
        without_effect(
            {key: value for name in sections for key, value in vars(getattr(part.config, name)).items()} | extra,
            names,
            needs,
        )
        for part in curriculum.all_stages
    ]
    for name, error in errors[0].items():
        if all(name in each for each in errors):
            raise error


def check_run_name(name: str) -> None:
    """Raise `ConfigError` unless a run may have a name."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid run name", setting("run_name"), "use letters, digits, '.', '_' and '-'"
        )


def default_run_name(curriculum: Curriculum) -> str:
    """Return a run name of data set, encoder, losses or stages, and seed."""
    return "-".join(_names(curriculum))[-100:].lstrip("-._")


def _names(curriculum: Curriculum) -> list[str]:
    """Return the names of data set, encoder, losses or stages, and seed, as parts of a file name."""
    config = curriculum.base
    losses = "-".join(stage.name or stage.config.loss.title for stage in curriculum.all_stages)
    names = Path(config.data.dataset).name, Path(config.model.model).name, losses, f"seed{config.training.seed}"
    return [re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") for name in names]


def shown_run_name(curriculum: Curriculum, base: Config) -> str:
    """Return the default name of a run at a tracker, which begins with what tells it from other runs.

    These are its losses or stages, its seed, and the settings given; data set and encoder follow. A list of runs shows
    about twenty characters.

    Args:
        base: settings without those of the command and its file: the defaults, or a recipe.
    """
    differences = _differences(to_dict(curriculum.base), to_dict(base))
    texts = [
        f"{name}={value}"
        for settings in differences.values()
        for name, value in settings.items()
        if name not in (*_NAMED, *MAY_CHANGE) and value is not None
    ]
    more = f" and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    *data, losses, seed = _names(curriculum)
    return " ".join([losses, seed, *texts[:_MOST_SHOWN]])[:_LONGEST_NAME] + more + " " + "-".join(filter(None, data))


def stage_difference(there: Any, here: Curriculum) -> str | None:
    """Return the first difference between the stages of a configuration file and those of this command, or None.

    Args:
        there: value of `stages` in the file, None if absent; the other settings of the file equal `here.base`.
    """
    listed = [stage for stage in there if isinstance(stage, Mapping)] if isinstance(there, list) else []
    before, now = [str(stage.get("name")) for stage in listed], [stage.name for stage in here.stages]
    if before != now:
        return f"its stages are {', '.join(before) or 'none'} there and {', '.join(now) or 'none'} here"
    for old, stage in zip(listed, here.stages, strict=True):
        base = to_dict(here.base)
        for section, values in to_dict(stage.config).items():
            stored = base[section] | (old.get(section) or {})
            for name, value in values.items():
                if stored[name] != value and name not in MAY_CHANGE:
                    return f"{section}.{name} of stage {stage.name!r} is {stored[name]!r} there and {value!r} here"
    return None


def _stage_config(base: Config, sections: Mapping[str, Any], where: str) -> Config:
    for section, shared in _SHARED.items():
        settings = sections.get(section)
        for name in settings if isinstance(settings, Mapping) else ():
            if name in shared:
                raise ConfigError(f"{section}.{name} must be the same in all stages", where, "move it above `stages:`")
    config = from_dict(sections, where, base)
    # Explicit epochs replace the steps of the run, and explicit steps replace its epochs.
    lengths = [name for name in _LENGTHS if sections.get("training", {}).get(name) is not None]
    if len(lengths) == 1:
        config = override(config, {"training": {name: None for name in _LENGTHS if name not in lengths}})
    return config


def _differences(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the base; both lengths if one differs, as one alone clears the other."""
    differences = {}
    for section, settings in values.items():
        own = {name for name, value in settings.items() if value != base[section][name]}
        own |= set(_LENGTHS) if own.intersection(_LENGTHS) else set()
        if own:
            differences[section] = {name: value for name, value in settings.items() if name in own}
    return differences


def read_settings(path: Path) -> dict[str, Any]:
    """Return the unchecked content of a configuration file, without the hash that the file of a run contains.

    Raises:
        StorageError: the file may not be read, or its name is invalid.
        ConfigError: the file is missing, is not YAML, has a key twice, is nested too deep, or holds no sections.
    """
    try:
        with disk_errors(path, reading=True):
            complete(path)
            content = read_yaml(path, "correct the line it names", ConfigError)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", str(path), "give a YAML file") from error
    if not isinstance(content, Mapping):
        raise ConfigError("the file holds no sections", str(path), "give `data:`, `model:`, `loss:` or `training:`")
    return {name: value for name, value in content.items() if name != "hash"}


def load_curriculum(
    path: Path, base: Config | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None
) -> Curriculum:
    """Return settings in layers: a base, a configuration file, flags, and the stages of the file.

    A later layer overrides an earlier one.

    Args:
        base: the lowest layer; the defaults when None.
        flags: `{section: {setting: value}}`.

    Raises:
        ConfigError: see `read_settings`, `from_dict` and `read_stages`.
    """
    content = read_settings(path)
    sections = {name: value for name, value in content.items() if name != STAGES}
    config = override(from_dict(sections, str(path), base, other_names=[STAGES]), flags or {})
    return Curriculum(config, read_stages(content[STAGES], str(path), config) if STAGES in content else ())


def dump_config(config: Config | Curriculum) -> str:
    """Return the settings as YAML, with their hash."""
    import yaml

    values = to_dict(config) if isinstance(config, Config) else config.to_dict()
    return yaml.safe_dump({"hash": config.hash, **values}, sort_keys=False, allow_unicode=True)
