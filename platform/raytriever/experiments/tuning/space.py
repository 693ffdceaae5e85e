"""Hyperparameter search: its settings, and the search space of settings with values or ranges.

A space consists of short names for ranges around published values (`NAMED`), or of a YAML file that looks like a
configuration file. This module imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from raytriever.core.errors import ConfigError, flag_of, setting
from raytriever.core.paths import SEARCH_SPACE
from raytriever.core.setting_declarations import check_options, option
from raytriever.core.unknown_names import check_known, did_you_mean
from raytriever.training.run_config import SECTIONS, from_dict, read_settings
from raytriever.training.training_settings import MAY_CHANGE

BATCH_AUC = "dev_batch_auc"
Point = dict[str, Any]  # values by `section.setting`
# Settings that cannot be searched: trials with different data or metrics cannot be compared.
_COMPARED = ("data.dataset", "data.dev_split", "data.test_split", "training.best_metric")
_KEYS = ("low", "high", "scale", "grid")
_SCALES = ("linear", "log")
DEFAULT_TRIALS = 20
FLAG = setting("search_space")
# Search spaces that have a name: section, setting, and its values or range.
NAMED: dict[str, tuple[str, str, Any]] = {
    "loss": ("loss", "loss", ["infonce", "infonce-symmetric", "mw"]),
    "loss-weights": ("loss", "loss_weights", ["1,0.1", "1,0.3", "1,1"]),
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


@dataclass(frozen=True)
class SearchConfig:
    """Settings of a sweep: search space, sampler, metric that decides the best trial, and early stopping."""

    search_space: str = option(
        "loss,lambda,temperature",
        "settings to search: any of loss, loss-weights (of two losses), lambda, temperature, learning-rate, batch, "
        "negatives, refresh, warmup, or a YAML file of settings with values or ranges",
        reads=SEARCH_SPACE,
        metavar="NAME,NAME|FILE",
    )
    searcher: str = option("grid", "sampler of the search space", choices=("grid", "random", "optuna"))
    trials: int | None = option(
        None,
        f"number of trials; by default the whole grid, or {DEFAULT_TRIALS}. A larger number continues a finished sweep",
        minimum=1,
    )
    metric: str = option(
        "ndcg_at_10",
        "metric on the dev split that decides the best trial: ndcg_at_10, mrr_at_10, recall_at_100 or auc of a search "
        "in the whole corpus, or dev_loss if all trials have the same loss",
    )
    trials_at_once: int | None = option(
        None, "number of concurrent trials; by default as many as the cluster has resources for", minimum=1
    )
    trial_gpus: float | None = option(
        None,
        "GPUs of a trial; a fraction if several trials share a GPU (default: 1 if there is a GPU)",
        above=0,
        maximum=1,
    )
    asha: bool = option(False, "stop trials that are behind others at the same step (asynchronous successive halving)")
    asha_metric: str = option(
        BATCH_AUC,
        "metric that compares trials at a validation: dev_batch_auc (of dev batches), dev_loss if all have the same "
        f"loss, or a metric such as ndcg_at_10 if {flag_of('eval_datasets')} or {flag_of('best_metric')} evaluates it "
        "during training",
        needs="asha",
    )
    asha_grace: int = option(20, "minimum number of steps of each trial", minimum=1, needs="asha")
    asha_factor: int = option(
        3,
        "at each rung one trial in this many continues; the step of the next rung is this many times as large",
        minimum=2,
        needs="asha",
    )


@dataclass(frozen=True)
class Dimension:
    """One searched setting."""

    section: str
    name: str
    values: tuple[Any, ...]  # values of a grid. Without a range, every sampler uses them.
    # `low`, `high`: ends of a range; None for a list of values.
    low: float | None = None
    high: float | None = None
    log: bool = False  # whether values are sampled uniformly on a logarithmic scale
    whole: bool = False

    @property
    def key(self) -> str:
        """The name of the setting with its section, `section.setting`."""
        return f"{self.section}.{self.name}"

    @property
    def is_range(self) -> bool:
        """Return whether the dimension is a range rather than a list of values."""
        return self.low is not None

    def at(self, fraction: float) -> float | int:
        """Return the value at a fraction of the range, 0 to 1."""
        assert self.low is not None
        assert self.high is not None
        if fraction in (0, 1):
            return self.high if fraction else self.low
        if self.log:
            value = math.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + fraction * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    def to_dict(self) -> Any:
        """Return the dimension in the form of a YAML file."""
        if not self.is_range:
            return list(self.values)
        scale = {"scale": "log"} if self.log else {}
        grid = {"grid": list(self.values)} if self.values else {}
        return {"low": self.low, "high": self.high, **scale, **grid}


@dataclass(frozen=True)
class SearchSpace:
    """All searched settings, in the order of the flag or the file."""

    dimensions: tuple[Dimension, ...]

    def grid(self) -> list[Point]:
        """Return every combination of the dimensions' values. The last dimension changes fastest."""
        for dimension in self.dimensions:
            if not dimension.values:
                what = f"{dimension.key} has a range and no values for a grid"
                remedy = f"add `grid:` to the range of {dimension.name}, or give {setting('searcher')} random or optuna"
                raise ConfigError(what, setting("searcher", "grid"), remedy)
        keys = [dimension.key for dimension in self.dimensions]
        return [
            dict(zip(keys, values, strict=True)) for values in itertools.product(*(d.values for d in self.dimensions))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return sections and settings in the form of a YAML file."""
        sections: dict[str, Any] = {}
        for dimension in self.dimensions:
            sections.setdefault(dimension.section, {})[dimension.name] = dimension.to_dict()
        return sections


def parse_space(content: Mapping[str, Any], where: str) -> SearchSpace:
    """Return the search space of `{section: {setting: list or range}}`, of a file or of a named space."""
    dimensions = []
    for section, settings in content.items():
        check_known("section", section, SECTIONS, where)
        if not isinstance(settings, Mapping) or not settings:
            raise ConfigError(f"section {section!r} holds {settings!r}", where, "give `setting: [value, value]` lines")
        hints = get_type_hints(SECTIONS[section])
        for name, domain in settings.items():
            check_known("setting", name, hints, f"{where}: {section}")
            dimensions.append(_dimension(section, name, domain, hints[name], f"{where}: {section}.{name}"))
    if not dimensions:
        raise ConfigError("holds nothing to search", where, "give for example `loss:` with `temperature: [0.01, 0.05]`")
    return SearchSpace(tuple(dimensions))


def _dimension(section: str, name: str, domain: Any, hint: Any, where: str) -> Dimension:
    if f"{section}.{name}" in _COMPARED:
        raise ConfigError("cannot be searched", where, "give it as a flag: it must be the same for all compared trials")
    if name in MAY_CHANGE:
        raise ConfigError("cannot be searched", where, "give it as a flag: it does not change the result of a trial")
    if isinstance(domain, list):
        return Dimension(section, name, _values(section, name, domain, where))
    if isinstance(domain, Mapping):
        return _range(section, name, domain, hint, where)
    raise ConfigError(f"holds {domain!r}", where, "give a list of values, or {low: ..., high: ...}")


def _range(section: str, name: str, domain: Mapping[Any, Any], hint: Any, where: str) -> Dimension:
    for key in domain:
        check_known("key", key, _KEYS, where)
    kinds = getattr(hint, "__args__", (hint,))
    whole = float not in kinds
    if whole and (int not in kinds or str in kinds):
        raise ConfigError("cannot have a range", where, "give a list of values")
    ends: list[Any] = []
    for end in ("low", "high"):
        if end not in domain:
            raise ConfigError(f"has no {end!r}", where, "give a range as {low: ..., high: ...}")
        ends += _values(section, name, [domain[end]], f"{where}.{end}")
    low, high = ends
    if not low < high:
        raise ConfigError(f"low {low:.15g} is not below high {high:.15g}", where, "give the lower end as `low:`")
    scale = domain.get("scale", "linear")
    check_known("scale", scale, _SCALES, where)
    if scale == "log" and low <= 0:
        raise ConfigError(f"low {low:.15g} is not above 0", where, "give a positive `low:`, or leave out `scale: log`")
    grid = domain.get("grid")
    dimension = Dimension(section, name, (), low, high, scale == "log", whole)
    if isinstance(grid, list):
        values = _values(section, name, grid, f"{where}.grid")
        for value in values:
            if not low <= value <= high:
                raise ConfigError(f"{value:.15g} is out of range", f"{where}.grid", f"give {low:.15g} to {high:.15g}")
    elif isinstance(grid, int) and not isinstance(grid, bool) and grid > 1:
        values = tuple(dict.fromkeys(dimension.at(index / (grid - 1)) for index in range(grid)))
    elif grid is None:
        values = ()
    else:
        raise ConfigError(f"holds {grid!r}", f"{where}.grid", "give a list of values, or the number of values")
    return dataclasses.replace(dimension, values=values)


def _values(section: str, name: str, listed: Sequence[Any], where: str) -> tuple[Any, ...]:
    if not listed:
        raise ConfigError("is an empty list", where, "give at least one value")
    values: list[Any] = []
    for value in listed:
        settings = getattr(from_dict({section: {name: value}}, where), section)
        try:
            check_options(settings)
        except ConfigError as error:
            raise error.at(where) from error
        parsed = getattr(settings, name)
        if parsed in values:
            raise ConfigError(f"{parsed!r} is listed twice", where, "give each value once")
        values.append(parsed)
    return tuple(values)


def parse_search_space(text: str) -> SearchSpace:
    """Return the search space of a flag: names separated by commas, or a YAML file."""
    if text.endswith((".yaml", ".yml")) or "/" in text:
        return parse_space(read_settings(Path(text)), text)
    content: dict[str, dict[str, Any]] = {}
    for name in (part.strip() for part in text.split(",")):
        if name not in NAMED:
            raise ConfigError(f"unknown name {name!r}", FLAG, f"give a YAML file, or {did_you_mean(name, NAMED)}")
        section, setting, domain = NAMED[name]
        if setting in content.get(section, {}):
            raise ConfigError(f"{name!r} is listed twice", FLAG, "give each name once")
        content.setdefault(section, {})[setting] = domain
    return parse_space(content, FLAG)


def short_name(key: str) -> str:
    """Return the name of a dimension in tables: its name in `NAMED`, otherwise the name of the setting."""
    names = {f"{section}.{setting}": name for name, (section, setting, _) in NAMED.items()}
    return names.get(key, key.partition(".")[2].replace("_", "-"))
