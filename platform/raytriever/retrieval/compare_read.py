"""Finished runs from their directories: of training (`metrics.json`) and of evaluation (`results.json`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from raytriever.errors import ConfigError, StorageError
from raytriever.retrieval.compare_run import Curve, Figures, FinishedRun
from raytriever.retrieval.evaluation_results import RESULTS, read_results
from raytriever.storage import disk_errors
from raytriever.tracking.mlflow_tracker import flatten

METRICS, CONFIG, STEPS = "metrics.json", "config.yaml", "steps.jsonl"
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


def _training(folder: Path, name: str) -> FinishedRun:
    path = folder / METRICS
    content = _json(path)
    try:
        dataset, split = str(content["dataset"]), str(content["split"])
        figures: Figures = {
            system: {dataset: {metric: float(value) for metric, value in content[system].items()}}
            for system in ("bm25", "before", "after")
            if system == "after" or system in content
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError("is not what this version writes", str(path), "train anew, with --fresh") from error
    return FinishedRun(
        name, figures, {dataset: split}, _settings(folder / CONFIG), _curves(folder), read_queries(folder), trained=True
    )


def _evaluation(folder: Path, name: str) -> FinishedRun:
    results = read_results(folder)
    try:
        splits = {dataset: str(about["split"]) for dataset, about in results["about"].items()}
        settings = flatten({key: value for key, value in (results.get("asked") or {}).items() if value is not None})
        figures = {model: {name: dict(sets[name]) for name in sets} for model, sets in results["models"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError("is torn or changed", str(folder / RESULTS), "evaluate again") from error
    return FinishedRun(name, figures, splits, settings, queries=read_queries(folder))


def _settings(path: Path) -> dict[str, str]:
    try:
        with disk_errors(path, reading=True):
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StorageError("is not a run's configuration", str(path), "write it anew by the run's command") from error
    content = content if isinstance(content, dict) else {}
    return flatten({key: value for key, value in content.items() if key not in NOT_SETTINGS})


def _curves(folder: Path) -> dict[str, Curve]:
    """The curves of a run, those of a curriculum's stages one behind another."""
    # Where there are stages, the whole's own file has its last figures only.
    files = sorted(folder.glob(f"stages/*/{STEPS}"), key=_number) or [f for f in [folder / STEPS] if f.is_file()]
    curves: dict[str, Curve] = {name: [] for name in CURVES}
    done = 0
    for file in files:
        with disk_errors(file, reading=True):
            lines = list(_lines(file.read_text(encoding="utf-8", errors="replace").splitlines()))
        for name in CURVES:
            points = {line["step"]: float(line["measured"][name]) for line in lines if name in line["measured"]}
            curves[name] += [(done + step, value) for step, value in sorted(points.items())]
        done += max((int(line["step"]) for line in lines if "loss" in line["measured"]), default=0)
    return curves


def _lines(texts: Iterable[str]) -> Iterable[dict[str, Any]]:
    """The whole lines; one torn by the end of a process is told again later in the file."""
    for text in texts:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("measured"), dict) and isinstance(line.get("step"), int):
            yield line


def _number(file: Path) -> tuple[int, str]:
    number = file.parent.name.split("-")[0]
    return (int(number) if number.isdigit() else 0, file.parent.name)


def read_queries(folder: Path) -> dict[str, dict[str, Any]]:
    """The content of a run's `per_query/`, by data set; raises `StorageError` where a file is not what a run writes."""
    found = {}
    for path in sorted((folder / "per_query").glob("*.json")):
        content = _json(path)
        if not {"queries", "texts", "models", "relevant"} <= content.keys():
            raise StorageError("does not hold per-query values", str(path), "evaluate again")
        found[path.stem] = content
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        with disk_errors(path, reading=True):
            content = json.loads(path.read_bytes())
    except ValueError as error:
        raise StorageError(f"is not JSON ({error})", str(path), "make it again") from error
    if not isinstance(content, dict):
        raise StorageError("is not what this version writes", str(path), "make it again")
    return content
