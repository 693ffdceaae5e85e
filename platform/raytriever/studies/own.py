"""Study of a user: a YAML file of data sets, arms and claims becomes a `Study`, as the recipes of the papers do.

Every arm trains on every data set and is measured on its test split. An arm is a layer of settings over those that all
arms share, or the name of a model that is measured as it is: `bm25`, `minilm`, a path or a hub name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from raytriever.config import Config, Curriculum, check_curriculum, check_curriculum_paths
from raytriever.config.curriculum import read_settings
from raytriever.config.settings import from_dict
from raytriever.errors import ConfigError
from raytriever.evaluation.protocol import metric_title, read_metrics
from raytriever.evaluation.request import BM25
from raytriever.options import did_you_mean
from raytriever.paths import MODELS, check_paths
from raytriever.studies.claims import Claim, Judge, above, alike, best
from raytriever.studies.definition import ROC, SCORES, Arm, Drawing, MeasuredDataset, Study, errors_within

_KEYS = ("name", "seeds", "metrics", "data_sets", "settings", "arms", "baseline", "claims")
_METRICS, _SEEDS, _MOST_SEEDS = "ndcg@10,mrr@10,recall@100,auc", 3, 100
_ABOVE, _ALIKE, _BEST = "above", "alike", "best"
_JUDGES: dict[str, Callable[..., Judge]] = {_ABOVE: above, _ALIKE: alike, _BEST: best}


def load_study(path: Path) -> Study:
    """Read a study from a file; nothing is written and no data set is opened.

    Raises:
        UserError: the file is missing or not YAML, a name in it is unknown, a local path does not exist, a value is
            wrong, or settings contradict each other.
    """
    where, content = str(path), read_settings(path)
    _check_names(content, _KEYS, where)
    shared = from_dict(_mapping(content.get("settings", {}), f"{where}: settings"), f"{where}: settings")
    metrics = _metrics(content.get("metrics", _METRICS), where)
    sets = {
        name: _with_data(shared, value, f"{where}: data set {name!r}")
        for name, value in _several(content, "data_sets", where).items()
    }
    arms = [
        arm
        for row, value in _several(content, "arms", where).items()
        for arm in _arms(row, value, sets, metrics, f"{where}: arm {row!r}")
    ]
    rows = list(dict.fromkeys(arm.row for arm in arms))
    names = [arm.name for arm in arms]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"two arms or data sets have the same letters and digits ({min(repeated)})", where, "rename one of them"
        )
    trained = [arm.row for arm in arms if arm.curriculum]
    baseline = content.get("baseline", (trained or rows)[0])
    _check_names([baseline], rows, f"{where}: baseline")
    seeds = content.get("seeds", _SEEDS)
    if type(seeds) is not int or not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigError(f"seeds: {seeds!r} is invalid", where, f"give a whole number from 1 to {_MOST_SEEDS}")
    claims = content.get("claims", [])
    if not isinstance(claims, list):
        raise ConfigError(f"claims: {claims!r} is no list", where, "give `- {above: [ARM, ARM], metrics: auc}`")
    name = _plain(str(content.get("name", path.stem)))
    return Study(
        name=name,
        title=name,
        source=path.name,
        arms=tuple(arms),
        seeds=seeds,
        baselines=(baseline,),
        claims=tuple(
            _claim(claim, rows, metrics, list(sets), f"{where}: claim {number}", f"{path.name}, claim {number}")
            for number, claim in enumerate(claims, 1)
        ),
        drawings=(Drawing(ROC, "roc"), Drawing(SCORES, "scores")),
    )


def _with_data(shared: Config, value: Any, where: str) -> Config:
    """Return the settings of a training on a data set: a path, or settings of `data:` with the path in `dataset`."""
    settings = {"dataset": value} if isinstance(value, str) else _mapping(value, where)
    if "dataset" not in settings:
        raise ConfigError("has no path", where, "give the path alone, or `dataset:` next to the other settings")
    config = from_dict({"data": settings}, where, shared)
    with errors_within(where):
        check_paths(config.data)
    return config


def _arms(row: str, value: Any, sets: Mapping[str, Config], metrics: tuple[str, ...], where: str) -> list[Arm]:
    """Return the training of a row on each data set, or the model of a row that is not trained."""
    measured = {
        name: MeasuredDataset(
            name, config.data.dataset, config.data.test_split, metrics, bm25_language=config.data.bm25_language
        )
        for name, config in sets.items()
    }
    if isinstance(value, str):
        with errors_within(where):
            MODELS.check(value, "model")
        model = next(iter(sets.values())).model
        limits = model.query_length, model.passage_length
        lengths = limits if value != BM25 and any(limits) else None
        return [Arm(_plain(row), row, tuple(measured.values()), None, model=value, lengths=lengths)]
    settings = _mapping(value, where)
    if "dataset" in _mapping(settings.get("data", {}), where):
        raise ConfigError("data.dataset is set", where, "every arm trains on every one of `data_sets:`; name it there")
    arms = []
    for name, config in sets.items():
        curriculum = Curriculum(from_dict(settings, where, config))
        with errors_within(where):
            check_curriculum(curriculum)
            check_curriculum_paths(curriculum)
        arms.append(Arm(f"{_plain(row)}-{_plain(name)}", row, (measured[name],), curriculum))
    return arms


def _claim(
    value: Any, rows: Sequence[str], metrics: tuple[str, ...], sets: Sequence[str], where: str, source: str
) -> Claim:
    """Return the claim of `{above: [ARM, ARM]}`, `{alike: [ARM, ARM], within: 0.01}` or `{best: ARM}`."""
    content = _mapping(value, where)
    kinds = [kind for kind in _JUDGES if kind in content]
    if len(kinds) != 1:
        raise ConfigError(f"holds {value!r}", where, f"give one of {', '.join(_JUDGES)}, with the names of arms")
    kind = kinds[0]
    _check_names(content, [kind, "metrics", "data_sets", *(["within"] if kind == _ALIKE else [])], where)
    names = content[kind] if isinstance(content[kind], list) else [content[kind]]
    _check_names(names, rows, where)
    if len(names) != (1 if kind == _BEST else 2):
        raise ConfigError(f"{kind} names {len(names)} arms", where, "give two arms; one for best")
    chosen = _metrics(content["metrics"], where) if "metrics" in content else metrics
    _check_names(chosen, metrics, where)
    on = content.get("data_sets", [])
    on = on if isinstance(on, list) else [on]
    _check_names(on, sets, where)
    within = {}
    if "within" in content:
        if type(content["within"]) not in (int, float) or not content["within"] >= 0:
            raise ConfigError(f"within: {content['within']!r} is invalid", where, "give a number such as 0.01")
        within = {"within": float(content["within"])}
    titles = ", ".join(map(metric_title, chosen))
    text = f"{names[0]} is {kind}{' ' + names[1] if len(names) > 1 else ''} in {titles}"
    return Claim(text + (f" on {', '.join(on)}" if on else ""), source, _JUDGES[kind](*names, chosen, on, **within))


def _several(content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return the named entries of a key, at least one."""
    entries = _mapping(content.get(key), f"{where}: {key}")
    if not entries or not all(isinstance(name, str) and _plain(name) for name in entries):
        raise ConfigError("holds no entry with a name", f"{where}: {key}", "give `NAME: value` lines")
    return entries


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError("is missing" if value is None else f"holds {value!r}", where, "give `NAME: value` lines")
    return value


def _metrics(value: Any, where: str) -> tuple[str, ...]:
    with errors_within(where):
        return read_metrics(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _check_names(names: Collection[Any], known: Sequence[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown name {name!r}", where, did_you_mean(str(name), known))


def _plain(name: str) -> str:
    """Return a name as a part of the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
