"""Finished runs: figures, settings, curves and per-query results, read from a directory or from MLflow.

A training run is read from `metrics.json`, an evaluation from `results.json`. MLflow finds runs by id or by filter."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NotRequired, TypedDict

from raytriever.errors import ConfigError, StorageError
from raytriever.evaluation.files import read_per_query
from raytriever.evaluation.results import RESULTS, read_results
from raytriever.masking import masked
from raytriever.reading.structured import conform, read_json, read_yaml
from raytriever.report.evaluation import PER_QUERY
from raytriever.storage import disk_errors
from raytriever.tracking.mlflow_tracker import EXPERIMENT, SQLITE, check_uri, flatten, tracking_uri
from raytriever.tracking.steps import STEPS, read_curves

Curve = list[tuple[int, float]]
Figures = dict[str, dict[str, dict[str, float | None]]]  # by model, data set and metric


@dataclass(frozen=True)
class FinishedRun:
    """One of the runs that are compared.

    Args:
        name: on the page.
        figures: by model, data set and metric. Of a training run the model is `after`, what it is compared with
            `before` and `bm25`; of an evaluation each has its own name.
        splits: of each data set.
        settings: `section.name` and its value as text.
        curves: `loss` and `dev_loss` by step, of a training run.
        queries: by data set, the content of `per_query/DATASET.json`.
        trained: whether it is a training run.
    """

    name: str
    figures: Figures
    splits: Mapping[str, str]
    settings: Mapping[str, str]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained: bool = False


METRICS, CONFIG = "metrics.json", "config.yaml"
CURVES = ("loss", "dev_loss")
NOT_SETTINGS = ("hash",)


def read_directory(folder: Path, name: str) -> FinishedRun:
    """Read the finished run of a directory, and give it a name.

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
        found = read_curves(file.parent, CURVES)
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


SYSTEMS = ("bm25", "before", "after")
MOST = 20  # runs of a filter
REASON_CHARACTERS = 200


class MlflowRuns:
    """The runs of the tracking server or database that `tracking_uri` names.

    Raises:
        ConfigError: there is none, or it does not answer.
    """

    def __init__(self) -> None:
        self._uri = tracking_uri()
        self._shown = masked(self._uri)
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        if self._uri.startswith(SQLITE) and not Path(self._uri.removeprefix(SQLITE)).is_file():
            # MLflow would make an empty one.
            raise ConfigError("no such database", self._shown, "name the server or database by MLFLOW_TRACKING_URI")
        check_uri(self._uri)
        from mlflow import MlflowClient

        with self._telling("does not answer"):
            self._client = MlflowClient(tracking_uri=self._uri)

    def by_id(self, run_id: str) -> FinishedRun:
        """One run.

        Raises:
            ConfigError: there is none of this id, or it has no figures.
        """
        with self._telling(f"does not know the run {run_id!r}"):
            return self._read(self._client.get_run(run_id))

    def by_filter(self, words: str) -> list[FinishedRun]:
        """The newest runs that a filter finds, with figures of their own; as in the search field of MLflow's UI.

        Raises:
            ConfigError: it is no filter, or finds nothing.
        """
        with self._telling(f"does not understand {words!r}"):
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            where = [experiment.experiment_id] if experiment else []
            found = self._client.search_runs(where, words, max_results=MOST, order_by=["attributes.start_time DESC"])
            runs = [self._read(run) for run in found if _figures(run)]
        if not runs:
            raise ConfigError(f"no finished run matches {words!r}", self._shown, "try the filter in MLflow's UI")
        return runs[::-1]

    def _read(self, run: Any) -> FinishedRun:
        figures = _figures(run)
        if not figures:
            raise ConfigError(f"run {run.info.run_id} has no figures", self._shown, "name a finished run")
        curves = {
            name: sorted(
                {point.step: point.value for point in self._client.get_metric_history(run.info.run_id, name)}.items()
            )
            for name in CURVES
            if name in run.data.metrics
        }
        split = str(run.data.params.get("data.test_split") or run.data.params.get("split") or "test")
        datasets = {dataset: split for sets in figures.values() for dataset in sets}
        name = str(run.info.run_name or run.info.run_id)
        queries = self._queries(run.info.run_id)
        return FinishedRun(name, figures, datasets, dict(run.data.params), curves, queries, trained="after" in figures)

    def _queries(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Read the results per query from a run's artifacts; empty if the run has none."""
        with self._telling("does not give the artifacts of a run"):
            if not any(one.path == PER_QUERY for one in self._client.list_artifacts(run_id)):
                return {}
            with TemporaryDirectory() as folder:
                self._client.download_artifacts(run_id, PER_QUERY, folder)
                return read_queries(Path(folder))

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError) as error:
            reason = textwrap.shorten(masked(str(error)), REASON_CHARACTERS, placeholder=" ...")
            raise ConfigError(
                f"MLflow {what} ({reason})", self._shown, "give an id or a filter of MLflow's UI"
            ) from error


def _figures(run: Any) -> Figures:
    """A training run logs `SYSTEM/METRIC` when it ends."""
    inputs = run.inputs.dataset_inputs if run.inputs else []
    dataset = str(inputs[0].dataset.name) if inputs else "data set"
    figures: Figures = {}
    for system in SYSTEMS:
        values = {
            name.removeprefix(f"{system}/"): float(value)
            for name, value in run.data.metrics.items()
            if name.startswith(f"{system}/")
        }
        if values:
            figures[system] = {dataset: dict(values)}
    if "after" in figures:
        return figures
    figures = {}
    for key, value in run.data.metrics.items():
        if key.count("/") == 2:  # an evaluation logs `MODEL/DATASET/METRIC`
            model, dataset, name = key.split("/")
            figures.setdefault(model, {}).setdefault(dataset, {})[name] = float(value)
    return figures
