"""Study and its file: YAML with data sets, variants and claims becomes a `Study`.

With `data_sets:`, every variant trains on each data set and is evaluated on the test split of the same data set. With
`evaluated:`, a variant trains as its settings say and is evaluated on the data sets listed there. A variant consists of
settings that override the common settings, or is an untrained model: `bm25`, `minilm`, a path or a hub name."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytriever.core.errors import ConfigError, UserError
from raytriever.core.paths import fetch_paths
from raytriever.core.unknown_names import check_known
from raytriever.evaluation.evaluated_datasets import EvaluationDataset, safe_name, unique_names
from raytriever.evaluation.protocol import Protocol, metric_title, read_metrics
from raytriever.evaluation.system_names import BM25, SYSTEM
from raytriever.experiments.study.claims import (
    Claim,
    Judge,
    above,
    above_on_average,
    alike,
    best,
    every,
    larger_gain,
    mostly_above,
    no_worse_on_average,
    smallest,
    steadier,
)
from raytriever.training.run_config import Config, check_config, check_config_paths, from_dict, read_settings

STEPS_TO_BEST = "steps_to_best"  # metric of a training, not of a ranking
AFTER = "after"  # name of a variant's model in its evaluation, as in the evaluation of a run


@dataclass(frozen=True)
class Variant:
    """One training, or one encoder that is not trained."""

    name: str  # unique name, also of the variant's directory and its run at the tracker
    row: str  # row of the table. Variants that are evaluated on different data sets may share a row.
    # Evaluation data sets by their names in tables. In one study, a name means one data set and split.
    datasets: Mapping[str, EvaluationDataset]
    # Settings of the training; the study replaces each `training.seed`. None if nothing is trained.
    curriculum: Config | None
    model: str = ""  # system to evaluate if nothing is trained: `bm25`, or an encoder as `--model` names it
    # Maximum tokens of a query and of a passage, for an untrained encoder; None means the encoder's own limit.
    lengths: tuple[int | None, int | None] | None = None


@dataclass(frozen=True)
class Study:
    """Variants and claims of one table."""

    name: str
    title: str
    source: str
    variants: tuple[Variant, ...]
    seeds: int  # default number of trainings of each variant; their seeds are 0 to seeds - 1
    # One or two rows with which the others are compared. Significant differences are marked `+` and `-` for the first
    # row, `◆` and `◇` for the second.
    baselines: tuple[str, ...]
    about: str = ""  # lines about the training and the data, printed above the table
    claims: tuple[Claim, ...] = ()
    # Published results by row, data set and metric, in the same units as our results (mostly fractions).
    paper: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    steps_to_best: bool = False  # whether the table has a column with the step of the best checkpoint


@contextmanager
def errors_within(where: str) -> Iterator[None]:
    """Add the location (a variant, or a part of a file) to a user error."""
    try:
        yield
    except UserError as error:
        raise error.within(where) from error


_TRAINED, _EVALUATED = "data_sets", "evaluated"
_TEXTS = ("name", "title", "source", "about")
_KEYS = (*_TEXTS, "seeds", "metrics", _TRAINED, _EVALUATED, "settings", "variants", "baseline", "claims", "paper")
_METRICS, _SEEDS, _MOST_SEEDS = "ndcg@10,mrr@10,recall@100,auc", 3, 100
_COLUMNS = ("row", "data_set", "metric", "value")
# Kinds of claims: about one variant, about pairs of variants, and about two lists of variants. `_MARGINS` has the key
# of each kind's margin.
_OF_ONE: Mapping[str, Callable[..., Judge]] = {"best": best, "smallest": smallest}
_OF_PAIRS: Mapping[str, Callable[..., Judge]] = {
    "above": above,
    "alike": alike,
    "above_on_average": above_on_average,
    "no_worse_on_average": no_worse_on_average,
}
_OF_LISTS: Mapping[str, Callable[..., Judge]] = {
    "mostly_above": lambda better, worse, *others: mostly_above(better, worse[0], *others),
    "steadier": steadier,
    "larger_gain": larger_gain,
}
_KINDS = (*_OF_PAIRS, *_OF_ONE, *_OF_LISTS)
_MARGINS = {"alike": "within", "no_worse_on_average": "within", "above_on_average": "by"}


def load_study(path: Path) -> Study:
    """Read a study from a file. Nothing is written, and no data set is opened."""
    where, content = str(path), read_settings(path)
    _check_names(content, _KEYS, where)
    texts = {key: _text(content, key, where) for key in _TEXTS}
    shared = from_dict(_mapping(content.get("settings", {}), f"{where}: settings"), f"{where}: settings")
    metrics = _metrics(content.get("metrics", _METRICS), where)
    if (_TRAINED in content) == (_EVALUATED in content):
        raise ConfigError(f"needs either {_TRAINED} or {_EVALUATED}", where, "give the data sets under one of the two")
    kind = _TRAINED if _TRAINED in content else _EVALUATED
    entries = _several(content, kind, where)
    file_names = unique_names(list(map(safe_name, entries)))
    sets = {
        name: _dataset(file_name, shared, value, metrics, f"{where}: data set {name!r}")
        for file_name, (name, value) in zip(file_names, entries.items(), strict=True)
    }
    variants = [
        variant
        for row, value in _several(content, "variants", where).items()
        for variant in _variants(row, value, shared, sets, kind, f"{where}: variant {row!r}")
    ]
    rows = list(dict.fromkeys(variant.row for variant in variants))
    names = [variant.name for variant in variants]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"two names of variants or data sets have equal letters and digits ({min(repeated)})", where, "rename one"
        )
    trained = [variant.row for variant in variants if variant.curriculum]
    baselines = _list(content.get("baseline", (trained or rows)[0]))
    _check_names(baselines, rows, f"{where}: baseline")
    if not 1 <= len(baselines) <= 2:
        raise ConfigError(f"baseline names {len(baselines)} variants", where, "give one or two")
    seeds = content.get("seeds", _SEEDS)
    if type(seeds) is not int or not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"seeds: {seeds!r} is invalid", where, f"give a whole number from 1 to {_MOST_SEEDS}")
    claims = content.get("claims", [])
    if not isinstance(claims, list):
        raise ConfigError(
            f"claims: {claims!r} is not a list", where, "give lines such as `- {above: [VARIANT, VARIANT]}`"
        )
    name = _plain(texts["name"] or path.stem)
    return Study(
        name=name,
        title=texts["title"] or name,
        source=texts["source"] or path.name,
        variants=tuple(variants),
        seeds=seeds,
        baselines=tuple(baselines),
        about=texts["about"],
        claims=tuple(
            read_claim(claim, rows, metrics, list(sets), f"{where}: claim {number}", f"{path.name}, claim {number}")
            for number, claim in enumerate(claims, 1)
        ),
        paper=read_printed(path.parent / _text(content, "paper", where)) if "paper" in content else {},
        steps_to_best=STEPS_TO_BEST in metrics,
    )


def read_printed(path: Path) -> dict[tuple[str, str, str], float]:
    """Read published results by row, data set and metric from a CSV file with the columns of `_COLUMNS`."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.reader(stream))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("is not a CSV file in UTF-8", str(path), "save it as CSV in UTF-8") from error
    printed = {}
    for number, line in enumerate(lines, 1):
        try:
            if number == 1:
                is_valid = line == list(_COLUMNS)
            else:
                *key, value = line
                row, dataset, metric = key
                printed[row, dataset, metric] = float(value)
                is_valid = math.isfinite(float(value))
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ConfigError(f"line {number} holds {line}", str(path), f"give the columns {', '.join(_COLUMNS)}")
    return printed


def _dataset(
    name: str, shared: Config, value: Any, metrics: tuple[str, ...], where: str
) -> tuple[Config, EvaluationDataset]:
    """Return the settings of a training on a data set, and the evaluation data set.

    The value is a path, or settings of `data:` with the path in `dataset`, and optionally `level` and `drop_own`."""
    settings = {"dataset": value} if isinstance(value, str) else dict(_mapping(value, where))
    if "dataset" not in settings:
        raise ConfigError("has no path", where, "give the path alone, or `dataset:` next to the other settings")
    level, drop_own = settings.pop("level", 1), settings.pop("drop_own", True)
    if type(level) is not int or level < 1 or type(drop_own) is not bool:
        what = f"level: {level!r} or drop_own: {drop_own!r} is invalid"
        raise ConfigError(what, where, "give `level:` a grade of at least 1, and `drop_own:` true or false")
    config = from_dict({"data": settings}, where, shared)
    with errors_within(where):
        fetch_paths(config.data)
    data = config.data
    protocol = Protocol(tuple(metric for metric in metrics if metric != STEPS_TO_BEST), level=level, drop_own=drop_own)
    return config, EvaluationDataset(
        name=name,
        parts={name: data.dataset},
        split=data.test_split,
        protocol=protocol,
        bm25_language=data.bm25_language,
        max_bad_rows=data.max_bad_rows,
    )


def _variants(
    row: str, value: Any, shared: Config, sets: Mapping[str, tuple[Config, EvaluationDataset]], kind: str, where: str
) -> list[Variant]:
    evaluated = {name: dataset for name, (_, dataset) in sets.items()}
    if isinstance(value, str):
        with errors_within(where):
            SYSTEM.check(value, "model")
        limits = shared.model.query_length, shared.model.passage_length
        lengths = limits if value != BM25 and any(limits) else None
        return [Variant(_plain(row), row, evaluated, None, model=value, lengths=lengths)]
    settings = dict(_mapping(value, where))
    if kind == _TRAINED and "dataset" in _mapping(settings.get("data", {}), where):
        raise ConfigError("data.dataset is set", where, "remove it, and name the data set in `data_sets:`")
    trainings = (
        {f"{_plain(row)}-{_plain(name)}": (config, {name: dataset}) for name, (config, dataset) in sets.items()}
        if kind == _TRAINED
        else {_plain(row): (shared, evaluated)}
    )
    variants = []
    for name, (config, datasets) in trainings.items():
        curriculum = from_dict(settings, where, config)
        with errors_within(where):
            check_config(curriculum)
            check_config_paths(curriculum)
        variants.append(Variant(name, row, datasets, curriculum))
    return variants


def read_claim(
    value: Any, rows: Sequence[str], metrics: tuple[str, ...], sets: Sequence[str], where: str, source: str
) -> Claim:
    """Return the claim of a mapping such as `{above: [VARIANT, VARIANT], metrics: auc}`. By default it is about all
    `metrics` and data `sets` of the study, and its source is `source`."""
    content = _mapping(value, where)
    kinds = [kind for kind in _KINDS if kind in content]
    if len(kinds) != 1:
        raise ConfigError(f"holds {value!r}", where, f"give one of {', '.join(_KINDS)}, with the names of variants")
    kind = kinds[0]
    margin, among = _MARGINS.get(kind), "among" if kind in _OF_ONE else None
    _check_names(content, [kind, "metrics", _TRAINED, "text", "source", *filter(None, (margin, among))], where)
    groups = _groups(kind, content[kind], where)
    for group in groups:
        _check_names(group, rows, where)
    chosen = _metrics(content["metrics"], where) if "metrics" in content else metrics
    _check_names(chosen, metrics, where)
    on = _list(content.get(_TRAINED, []))
    _check_names(on, sets, where)
    given: dict[str, Any] = {}
    if margin and margin in content:
        if type(content[margin]) not in (int, float) or not content[margin] >= 0:
            raise ConfigError(f"{margin}: {content[margin]!r} is invalid", where, "give a number such as 0.01")
        given = {margin: float(content[margin])}
    if among and among in content:
        given = {among: _list(content[among])}
        _check_names(given[among], rows, where)
    if kind in _OF_LISTS:
        judge = _OF_LISTS[kind](*groups, chosen, on)
    else:
        make = {**_OF_ONE, **_OF_PAIRS}[kind]
        judges = [make(*group, chosen, on, **given) for group in groups]
        judge = judges[0] if len(judges) == 1 else every(*judges)
    titles = ", ".join("steps to best" if metric == STEPS_TO_BEST else metric_title(metric) for metric in chosen)
    names = [", ".join(group) for group in groups] if kind in _OF_LISTS else groups[0]
    text = f"{names[0]} is {kind.replace('_', ' ')}{' ' + names[1] if len(names) > 1 else ''} in {titles}"
    text += f" on {', '.join(on)}" if on else ""
    return Claim(_text(content, "text", where) or text, _text(content, "source", where) or source, judge)


def _groups(kind: str, value: Any, where: str) -> list[list[Any]]:
    groups = [_list(group) for group in value] if _list(value) and isinstance(_list(value)[0], list) else [_list(value)]
    if kind in _OF_LISTS:
        is_valid, remedy = len(groups) == 2 and all(groups), "give two lists of variants [[A, B], [C, D]] or [[A], [B]]"
        sizes = {"mostly_above": len(groups[-1]) == 1, "larger_gain": {len(group) for group in groups} == {2}}
        is_valid = is_valid and sizes.get(kind, True)
    elif kind in _OF_ONE:
        is_valid, remedy = [len(group) for group in groups] == [1], "give one variant"
    else:
        is_valid, remedy = (
            {len(group) for group in groups} == {2},
            "give two variants, or several lists of two variants",
        )
    if not is_valid:
        raise ConfigError(f"{kind} names {sum(map(len, groups))} variants", where, remedy)
    return groups


def _several(content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    entries = _mapping(content.get(key), f"{where}: {key}")
    if not entries or not all(isinstance(name, str) and _plain(name) for name in entries):
        raise ConfigError("is empty or has an invalid name", f"{where}: {key}", "give `NAME: value` lines")
    return entries


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError("is missing" if value is None else f"holds {value!r}", where, "give `NAME: value` lines")
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content.get(key, "")
    if isinstance(value, list | dict):
        raise ConfigError(f"{key}: {value!r} is not a text", where, "give a text")
    return str(value).strip()


def _metrics(value: Any, where: str) -> tuple[str, ...]:
    words = [word.strip() for entry in _list(value) for word in str(entry).split(",")]
    rankings = [word for word in words if word != STEPS_TO_BEST]
    with errors_within(where):
        metrics = read_metrics(",".join(rankings)) if rankings or not words else ()
    return (*metrics, STEPS_TO_BEST) if STEPS_TO_BEST in words else metrics


def _check_names(names: Collection[Any], known: Sequence[str], where: str) -> None:
    for name in names:
        check_known("name", name, known, where)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
