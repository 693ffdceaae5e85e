"""Finished runs from their directories: of training (`metrics.json`) and of evaluation (`results.json`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from raytriever.errors import ConfigError, StorageError
from raytriever.reading.structured import conform, read_json, read_yaml
from raytriever.retrieval.compare_run import Curve, Figures, FinishedRun
from raytriever.retrieval.evaluation_results import RESULTS, read_results
from raytriever.retrieval.per_query_file import read_per_query
from raytriever.storage import disk_errors
from raytriever.tracking.mlflow_tracker import flatten
from raytriever.tracking.steps import STEPS, curves

METRICS, CONFIG = "metrics.json", "config.yaml"
CURVES = ("loss", "dev_loss")
NOT_SETTINGS = ("hash",)


def read_directory(folder: Path, name: str) -> FinishedRun:
    """What a directory holds, under a name.

    Raises:
        ConfigError: it holds no finished run.
        StorageError: a file of it is torn, changed or of an older format.
    """
    if (folder / RESULTS).is_file():
        return _evaluation(folder, name)
    if (folder / METRICS).is_file():
        return _training(folder, name)
    if (folder / CONFIG).is_file():
        raise ConfigError("holds a run that is not finished", str(folder), "go on with it by the command that began it")
    raise ConfigError("holds no run", str(folder), "name a directory of jobs/train.py or of jobs/evaluate.py")


class _Trained(TypedDict):
    dataset: str
    split: str
    bm25: NotRequired[dict[str, float]]
    before: NotRequired[dict[str, float]]
    after: dict[str, float | None]


def _training(folder: Path, name: str) -> FinishedRun:
    path = folder / METRICS
    with disk_errors(path, reading=True):
        content = read_json(path, _Trained, "train again, with --fresh", "is not what this version writes")
    dataset = content["dataset"]
    systems = {"bm25": content.get("bm25"), "before": content.get("before"), "after": content["after"]}
    figures: Figures = {system: {dataset: dict(values)} for system, values in systems.items() if values is not None}
    splits = {dataset: content["split"]}
    return FinishedRun(
        name, figures, splits, _settings(folder / CONFIG), _curves(folder), read_queries(folder), trained=True
    )


def _evaluation(folder: Path, name: str) -> FinishedRun:
    results = read_results(folder)
    if not any(results["models"].values()):
        raise StorageError("holds no figures", str(folder / RESULTS), "evaluate again")
    splits = {dataset: about["split"] for dataset, about in results["about"].items()}
    settings = flatten({key: value for key, value in (results.get("asked") or {}).items() if value is not None})
    figures = {model: {name: dict(sets[name]) for name in sets} for model, sets in results["models"].items()}
    return FinishedRun(name, figures, splits, settings, queries=read_queries(folder))


def _settings(path: Path) -> dict[str, str]:
    remedy = "write it again by the run's command"
    try:
        with disk_errors(path, reading=True):
            content = conform(read_yaml(path, remedy), str(path), dict[str, Any], remedy)
    except FileNotFoundError:
        return {}
    return flatten({key: value for key, value in content.items() if key not in NOT_SETTINGS})


def _curves(folder: Path) -> dict[str, Curve]:
    """The curves of a run, those of a curriculum's stages one behind another."""
    # Where there are stages, the whole's own file has its last figures only.
    files = sorted(folder.glob(f"stages/*/{STEPS}"), key=_number) or [f for f in [folder / STEPS] if f.is_file()]
    whole: dict[str, Curve] = {name: [] for name in CURVES}
    done = 0
    for file in files:
        found = curves(file.parent, CURVES)
        for name, points in found.items():
            whole[name] += [(done + step, value) for step, value in points]
        done += max((step for step, _ in found["loss"]), default=0)
    return whole


def _number(file: Path) -> tuple[int, str]:
    number = file.parent.name.split("-")[0]
    return (int(number) if number.isdigit() else 0, file.parent.name)


def read_queries(folder: Path) -> dict[str, dict[str, Any]]:
    """The content of a run's `per_query/`, by data set; raises `StorageError` where a file is not what a run writes."""
    return {path.stem: dict(read_per_query(path)) for path in sorted((folder / "per_query").glob("*.json"))}
