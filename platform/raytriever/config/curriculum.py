"""Stages of a training, each with its own data, loss and epochs (curriculum), and the YAML file of an experiment.

The settings of a run come first: they say what is evaluated and which encoder training begins with. Each stage is
laid over them, never over the stage before it, and continues from the weights of the stage before it (multi-positive
paper, section 4.3: first the positives that an LLM judged, then one epoch on those that people judged)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from raytriever.config.settings import Config, check_config, from_dict, hash_of, lay, to_dict
from raytriever.errors import ConfigError, UserError
from raytriever.options import NEEDS, needs_of, without_effect
from raytriever.paths import check_paths
from raytriever.reading.structured import read_yaml
from raytriever.storage import disk_errors
from raytriever.training.config import MAY_CHANGE

STAGES = "stages"
TRIALS = "trials"  # the folder of a sweep in which each trial has its run directory
# Of runs and stages: a directory, and a run in MLflow.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# What all stages share: one encoder is trained, and measured on one split.
_SHARED = {"model": ("model", "revision", "pooling", "similarity", "towers", "truncate_dim"), "data": ("test_split",)}
_LENGTHS = ("epochs", "max_steps")


@dataclass(frozen=True)
class Stage:
    """One stretch of training.

    Args:
        name: as `NAME`; empty where a run has no stages and is all one stretch.
        config: all its settings; `config.model.model` is the encoder of the run, before any stage.
    """

    name: str
    config: Config


@dataclass(frozen=True)
class Curriculum:
    """What a run does.

    Args:
        base: the run's own settings: its `data` is measured, its `model` is where training begins.
        stages: in their order; a run without any trains as `base` says.
    """

    base: Config
    stages: tuple[Stage, ...] = ()

    @property
    def parts(self) -> tuple[Stage, ...]:
        """The stretches of training: the stages, or the run itself."""
        return self.stages or (Stage("", self.base),)

    @property
    def losses(self) -> str:
        """The losses in the order they are trained with."""
        return " then ".join(dict.fromkeys(part.config.loss.loss for part in self.parts))

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over every setting; those of `base` where there are no stages."""
        return hash_of(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Sections and settings as plain values, and what each stage has otherwise."""
        base = to_dict(self.base)
        if not self.stages:
            return base
        return base | {
            STAGES: [{"name": stage.name, **_otherwise(to_dict(stage.config), base)} for stage in self.stages]
        }


def lay_stages(content: Any, where: str, base: Config) -> tuple[Stage, ...]:
    """Lay a file's list of stages over the run's own settings.

    Args:
        content: a list of `{"name": ..., section: {setting: value}}`.
        where: the file, for error messages.
        base: the run's own settings.

    Raises:
        ConfigError: no list, a stage without a name or with that of another, an unknown section or setting, a value
            of the wrong type, or a setting that all stages share.
    """
    if not isinstance(content, list) or not content:
        raise ConfigError(f"`stages:` holds {content!r}", where, "give a list of stages, each with a `name:`")
    stages: dict[str, Stage] = {}
    for number, settings in enumerate(content, 1):
        if not isinstance(settings, Mapping):
            raise ConfigError(f"stage {number} holds {settings!r}", where, "give `name:` and sections such as `loss:`")
        name = settings.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            told = f"has the name {name!r}" if "name" in settings else "has no name"
            raise ConfigError(f"stage {number} {told}", where, "give `name:`, of letters, digits, '.', '_' and '-'")
        if name in stages:
            raise ConfigError(f"two stages are called {name!r}", where, "give each a name of its own")
        sections = {section: values for section, values in settings.items() if section != "name"}
        stages[name] = Stage(name, _laid_over(base, sections, f"{where}: stage {name!r}"))
    return tuple(stages.values())


def check_curriculum(curriculum: Curriculum) -> None:
    """Hold the settings of the run and of every stage to their declarations; raises `ConfigError`."""
    check_config(curriculum.base)
    for stage in curriculum.stages:
        with naming(stage):
            check_config(stage.config)


@contextmanager
def naming(stage: Stage) -> Iterator[None]:
    """Say in which stage a mistake is."""
    try:
        yield
    except UserError as error:
        if not stage.name:
            raise
        where = f"stage {stage.name!r}" + (f": {error.where}" if error.where else "")
        raise type(error)(error.what, where, error.remedy) from error


def check_curriculum_paths(curriculum: Curriculum) -> None:
    """Report a missing local path in the settings of a run or of any of its stages."""
    base = curriculum.base
    check_paths(base.data, base.model, base.validation)
    for stage in curriculum.stages:
        with naming(stage):
            check_paths(stage.config.data, stage.config.model, stage.config.validation)


def check_explicit_settings(
    curriculum: Curriculum, explicit: Iterable[str], search: Any = None, varied: Collection[str] = ()
) -> None:
    """Refuse an explicit setting that has no effect in any stage; raises `ConfigError`.

    Args:
        curriculum: all settings.
        explicit: names of the settings that the user gave.
        search: the settings of a search.
        varied: names of the settings that the search varies: some trial may meet a need for them.
    """
    sections = [field.name for field in fields(Config)]
    kinds = [type(getattr(curriculum.base, name)) for name in sections] + ([type(search)] if search else [])
    needs = {
        name: each
        for name, each in needs_of(*kinds).items()
        if not any(match[2] in varied for need in each if (match := NEEDS.fullmatch(need)))
    }
    extra = vars(search) if search else {}
    names = sorted(explicit)
    errors = [
        without_effect(
            {key: value for name in sections for key, value in vars(getattr(part.config, name)).items()} | extra,
            names,
            needs,
        )
        for part in curriculum.parts
    ]
    for name, error in errors[0].items():
        if all(name in each for each in errors):
            raise error


def default_run_name(curriculum: Curriculum) -> str:
    """Return a run's name made of its data set, encoder, losses or stages, and seed."""
    config = curriculum.base
    parts = (
        Path(config.data.dataset).name,
        Path(config.model.model).name,
        *(stage.name or stage.config.loss.loss for stage in curriculum.parts),
        f"seed{config.training.seed}",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-._")[-100:].lstrip("-._")


def different_stages(there: Any, here: Curriculum) -> str | None:
    """The first thing in which the stages of a run's configuration file differ from those of this command.

    Args:
        there: what stands at `stages` in the file, None where nothing does; the settings beside it are `here.base`'s.
        here: of this command.
    """
    listed = [stage for stage in there if isinstance(stage, Mapping)] if isinstance(there, list) else []
    before, now = [str(stage.get("name")) for stage in listed], [stage.name for stage in here.stages]
    if before != now:
        return f"its stages are {', '.join(before) or 'none'} there and {', '.join(now) or 'none'} here"
    for old, stage in zip(listed, here.stages, strict=True):
        base = to_dict(here.base)
        for section, values in to_dict(stage.config).items():
            found = base[section] | (old.get(section) or {})
            for name, value in values.items():
                if found[name] != value and name not in MAY_CHANGE:
                    return f"{section}.{name} of stage {stage.name!r} is {found[name]!r} there and {value!r} here"
    return None


def _laid_over(base: Config, sections: Mapping[str, Any], where: str) -> Config:
    for section, shared in _SHARED.items():
        given = sections.get(section)
        for name in given if isinstance(given, Mapping) else ():
            if name in shared:
                raise ConfigError(f"gives {section}.{name}", where, "all stages share it: give it above `stages:`")
    config = from_dict(sections, where, base)
    # Of epochs and steps the one that is asked for takes the place of the other.
    lengths = [name for name in _LENGTHS if sections.get("training", {}).get(name) is not None]
    if len(lengths) == 1:
        config = lay(config, {"training": {name: None for name in _LENGTHS if name not in lengths}})
    return config


def _otherwise(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from the base's; both lengths if one does, because one given alone clears the other."""
    found = {}
    for section, settings in values.items():
        own = {name for name, value in settings.items() if value != base[section][name]}
        own |= set(_LENGTHS) if own.intersection(_LENGTHS) else set()
        if own:
            found[section] = {name: value for name, value in settings.items() if name in own}
    return found


def read_settings(path: Path) -> dict[str, Any]:
    """What stands in a configuration file, unchecked, without the hash that a run's own file has.

    Raises:
        StorageError: it may not be read, or nothing can have its name.
        ConfigError: it is missing, is not YAML, has a key twice, is nested too deep, or holds no sections.
    """
    try:
        with disk_errors(path, reading=True):
            content = read_yaml(path, "correct the line it names", ConfigError)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", str(path), "give a YAML file") from error
    if not isinstance(content, Mapping):
        raise ConfigError("holds no sections", str(path), "give `data:`, `model:`, `loss:` or `training:`")
    return {name: value for name, value in content.items() if name != "hash"}


def load_curriculum(
    path: Path, base: Config | None = None, flags: Mapping[str, Mapping[str, Any]] | None = None
) -> Curriculum:
    """Lay a configuration file over a base, flags over the file's own settings, and its stages over all of these.

    Args:
        path: the file.
        base: the defaults when None.
        flags: `{section: {setting: value}}`.

    Raises:
        ConfigError: see `read_settings`, `from_dict` and `lay_stages`.
    """
    content = read_settings(path)
    own = {name: value for name, value in content.items() if name != STAGES}
    config = lay(from_dict(own, str(path), base, beside=[STAGES]), flags or {})
    return Curriculum(config, lay_stages(content[STAGES], str(path), config) if STAGES in content else ())


def dump_config(config: Config | Curriculum) -> str:
    """The resolved settings as YAML, with their hash."""
    import yaml

    values = to_dict(config) if isinstance(config, Config) else config.to_dict()
    return yaml.safe_dump({"hash": config.hash, **values}, sort_keys=False, allow_unicode=True)
