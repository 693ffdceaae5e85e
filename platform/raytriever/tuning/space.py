"""Hyperparameter search: its settings, and the search space of settings with values or ranges.

A space is given by short names for ranges around the papers' values (`NAMED`), or by a YAML file in the form of a
configuration file. Imports nothing heavy: the command line reads it for `--help`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from raytriever.config.curriculum import read_settings
from raytriever.config.settings import Config, from_dict
from raytriever.errors import ConfigError
from raytriever.options import check_options, did_you_mean, option
from raytriever.paths import SEARCH_SPACE
from raytriever.training.config import MAY_CHANGE

DEV_LOSS, BATCH_AUC = "dev_loss", "dev_batch_auc"
DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class SearchConfig:
    """What is searched, how, and what the best is best by."""

    search_space: str = option(
        "loss,lambda,temperature",
        "what is searched: any of loss, lambda, temperature, learning-rate, batch, negatives, refresh, warmup, or a "
        "YAML file of settings with values or ranges",
        reads=SEARCH_SPACE,
        form="NAME,NAME|FILE",
    )
    searcher: str = option("grid", "which points are tried", choices=("grid", "random", "optuna"))
    trials: int | None = option(
        None,
        f"how many trials; by default the whole grid, or {DEFAULT_TRIALS}. A sweep goes on when more are asked for",
        minimum=1,
    )
    metric: str = option(
        "ndcg_at_10",
        "what the best trial is best by, on the dev split: ndcg_at_10, mrr_at_10, recall_at_100 or auc of searching "
        "the whole corpus, or dev_loss where all trials have one loss",
    )
    trials_at_once: int | None = option(
        None, "trials at a time; by default as many as the cluster has room for", minimum=1
    )
    asha: bool = option(False, "stop trials that are behind at the same step (asynchronous successive halving)")
    asha_metric: str = option(
        BATCH_AUC,
        "how trials are compared at a validation: dev_batch_auc (of dev batches), dev_loss where all have one loss, "
        "or a metric such as ndcg_at_10 where --eval-datasets or --best-metric measures it during training",
        needs="asha",
    )
    asha_grace: int = option(20, "steps that each trial runs at least", minimum=1, needs="asha")
    asha_factor: int = option(
        3,
        "at each rung one trial in this many continues; rungs are this many times further apart",
        minimum=2,
        needs="asha",
    )


Point = dict[str, Any]  # values by `section.setting`
# The rows that trials are compared on: among trials that differ here none would be better.
_COMPARED = ("data.dataset", "data.dev_split", "data.test_split", "training.best_metric")
_KEYS = ("low", "high", "scale", "grid")
_SCALES = ("linear", "log")


@dataclass(frozen=True)
class Dimension:
    """One setting that is searched.

    Args:
        section, name: of the setting.
        values: what a grid tries; where there is no range, what every search tries.
        low, high: of a range; None where there is a list.
        log: whether the range is even in the logarithm.
        whole: whether values are whole numbers.
    """

    section: str
    name: str
    values: tuple[Any, ...]
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False

    @property
    def key(self) -> str:
        """`section.setting`."""
        return f"{self.section}.{self.name}"

    @property
    def is_range(self) -> bool:
        """Whether there is more between the values of the grid."""
        return self.low is not None

    def at(self, share: float) -> float | int:
        """The value at a share of the range, 0 to 1."""
        assert self.low is not None
        assert self.high is not None
        if share in (0, 1):
            return self.high if share else self.low
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    def to_dict(self) -> Any:
        """As it is written in a file."""
        if not self.is_range:
            return list(self.values)
        scale = {"scale": "log"} if self.log else {}
        grid = {"grid": list(self.values)} if self.values else {}
        return {"low": self.low, "high": self.high, **scale, **grid}


@dataclass(frozen=True)
class SearchSpace:
    """All that is searched, in the order in which it was given."""

    dimensions: tuple[Dimension, ...]

    def grid(self) -> list[Point]:
        """Every combination of the dimensions' values, the last dimension changing fastest.

        Raises:
            ConfigError: a range has no `grid:`.
        """
        for one in self.dimensions:
            if not one.values:
                raise ConfigError(
                    f"{one.key} has a range and no values for a grid",
                    "--searcher grid",
                    f"give `grid:` beside {one.name}'s range, or --searcher random or optuna",
                )
        keys = [one.key for one in self.dimensions]
        return [
            dict(zip(keys, values, strict=True)) for values in itertools.product(*(d.values for d in self.dimensions))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Sections and settings as they are written in a file."""
        sections: dict[str, Any] = {}
        for one in self.dimensions:
            sections.setdefault(one.section, {})[one.name] = one.to_dict()
        return sections


def parse_space(content: Mapping[str, Any], where: str) -> SearchSpace:
    """A space from what stands in a file, or behind a name.

    Args:
        content: `{section: {setting: list or range}}`.
        where: the file, for error messages.

    Raises:
        ConfigError: an unknown section or setting, one that cannot be searched, an empty list, a value of the wrong
            type or out of range, one that stands twice, a range whose ends are the wrong way round.
    """
    dimensions = []
    sections = {field.name: type(getattr(Config(), field.name)) for field in dataclasses.fields(Config)}
    for section, settings in content.items():
        if section not in sections:
            raise ConfigError(f"unknown section {section!r}", where, did_you_mean(str(section), sections))
        if not isinstance(settings, Mapping) or not settings:
            raise ConfigError(f"section {section!r} holds {settings!r}", where, "give `setting: [value, value]` lines")
        hints = get_type_hints(sections[section])
        for name, given in settings.items():
            if name not in hints:
                raise ConfigError(f"unknown setting {name!r} in {section!r}", where, did_you_mean(str(name), hints))
            dimensions.append(_dimension(section, name, given, hints[name], f"{where}: {section}.{name}"))
    if not dimensions:
        raise ConfigError("holds nothing to search", where, "give `loss:` with `temperature: [0.01, 0.05]`, say")
    return SearchSpace(tuple(dimensions))


def _dimension(section: str, name: str, given: Any, hint: Any, where: str) -> Dimension:
    if f"{section}.{name}" in _COMPARED:
        raise ConfigError("cannot be searched", where, "trials are compared by it: give it as a flag")
    if name in MAY_CHANGE:
        raise ConfigError("cannot be searched", where, "it says how a trial is run, not what it learns: give a flag")
    if isinstance(given, list):
        return Dimension(section, name, _values(section, name, given, where))
    if isinstance(given, Mapping):
        return _range(section, name, given, hint, where)
    raise ConfigError(f"holds {given!r}", where, "give a list of values, or {low: ..., high: ...}")


def _range(section: str, name: str, given: Mapping[Any, Any], hint: Any, where: str) -> Dimension:
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r}", where, did_you_mean(str(key), _KEYS))
    kinds = getattr(hint, "__args__", (hint,))
    whole = float not in kinds
    if whole and (int not in kinds or str in kinds):
        raise ConfigError("has no range", where, "give a list of values")
    ends: list[Any] = []
    for end in ("low", "high"):
        if end not in given:
            raise ConfigError(f"has no {end!r}", where, "a range is {low: ..., high: ...}")
        ends += _values(section, name, [given[end]], f"{where}.{end}")
    low, high = ends
    if not low < high:
        raise ConfigError(f"low {low:.15g} is not below high {high:.15g}", where, "give the lower end as `low:`")
    scale = given.get("scale", "linear")
    if scale not in _SCALES:
        raise ConfigError(f"unknown scale {scale!r}", where, did_you_mean(str(scale), _SCALES))
    if scale == "log" and low <= 0:
        raise ConfigError(
            f"low {low:.15g} has no logarithm", where, "give a positive `low:`, or leave out `scale: log`"
        )
    grid = given.get("grid")
    dimension = Dimension(section, name, (), low, high, scale == "log", whole)
    if isinstance(grid, list):
        values = _values(section, name, grid, f"{where}.grid")
        for value in values:
            if not low <= value <= high:
                raise ConfigError(f"{value:.15g} is not between {low:.15g} and {high:.15g}", f"{where}.grid")
    elif isinstance(grid, int) and not isinstance(grid, bool) and grid > 1:
        values = tuple(dict.fromkeys(dimension.at(place / (grid - 1)) for place in range(grid)))
    elif grid is None:
        values = ()
    else:
        raise ConfigError(f"holds {grid!r}", f"{where}.grid", "give a list of values, or how many there are to be")
    return dataclasses.replace(dimension, values=values)


def _values(section: str, name: str, given: Sequence[Any], where: str) -> tuple[Any, ...]:
    """Values as the setting has them, held to its declaration."""
    if not given:
        raise ConfigError("is an empty list", where, "give at least one value")
    values: list[Any] = []
    for value in given:
        settings = getattr(from_dict({section: {name: value}}, where), section)
        try:
            check_options(settings)
        except ConfigError as error:
            raise ConfigError(error.what, where, error.remedy) from error
        found = getattr(settings, name)
        if found in values:
            raise ConfigError(f"{found!r} stands there twice", where, "give each value once")
        values.append(found)
    return tuple(values)


FLAG = "--search-space"
NAMED: dict[str, tuple[str, str, Any]] = {
    "loss": ("loss", "loss", ["infonce", "infonce-symmetric", "mw"]),
    "lambda": ("loss", "distribution_weight", {"low": 0.0, "high": 0.1, "grid": [0.0, 0.01]}),
    "temperature": ("loss", "temperature", {"low": 0.005, "high": 0.1, "scale": "log", "grid": [0.01, 0.05]}),
    "learning-rate": (
        "training",
        "learning_rate",
        {"low": 1e-5, "high": 1e-4, "scale": "log", "grid": [1e-5, 3e-5, 5e-5]},
    ),
    "batch": ("training", "batch_size", [16, 32, 64]),
    "negatives": ("data", "negatives_per_query", [3, 5, 7]),
    "refresh": ("refresh", "refresh_every", [100, 300, 1000]),
    "warmup": ("training", "warmup_steps", {"low": 0, "high": 1000, "grid": [0, 100, 500]}),
}


def parse_search_space(given: str) -> SearchSpace:
    """A space from what was given as a flag: names separated by commas, or a file.

    Raises:
        ConfigError: an unknown name, one given twice, or see `read_settings` and `parse_space`.
    """
    if given.endswith((".yaml", ".yml")) or "/" in given:
        return parse_space(read_settings(Path(given)), given)
    content: dict[str, dict[str, Any]] = {}
    for name in (part.strip() for part in given.split(",")):
        if name not in NAMED:
            raise ConfigError(f"unknown name {name!r}", FLAG, f"{did_you_mean(name, NAMED)} Or give a YAML file")
        section, setting, domain = NAMED[name]
        if setting in content.get(section, {}):
            raise ConfigError(f"{name!r} stands there twice", FLAG, "give each name once")
        content.setdefault(section, {})[setting] = domain
    return parse_space(content, FLAG)


def short_name(key: str) -> str:
    """What a dimension is called in tables: its name above where it has one, else the setting's."""
    names = {f"{section}.{setting}": name for name, (section, setting, _) in NAMED.items()}
    return names.get(key, key.partition(".")[2].replace("_", "-"))
