"""Finished runs: metrics, settings, curves and per-query results, read from a directory or from MLflow.

An evaluation has its results in its directory, a training run in `evaluation/` of its directory. MLflow finds runs by
id or by filter. In MLflow, the same files are artifacts of the run, and a tag has its kind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raytriever.core.errors import ConfigError, StorageError
from raytriever.core.masking import masked
from raytriever.core.reading.json_and_yaml import conform, read_yaml
from raytriever.evaluation.evaluation_files import PER_QUERY, read_queries
from raytriever.evaluation.results import EVALUATION, RESULTS, Results
from raytriever.tracking.mlflow_tracker import SQLITE, check_uri, experiment_name, flatten, mlflow_errors, tracking_uri
from raytriever.tracking.step_log import end_to_end, training_folders
from raytriever.tracking.tracker import COMMAND

METRICS, CONFIG, TRIALS = "metrics.json", "config.yaml", "trials.json"
CURVES = ("loss", "dev_loss")
NOT_SETTINGS = ("hash",)
MAX_RUNS = 20  # maximum number of runs that a filter selects: the newest ones

Curve = list[tuple[int, float]]
Metrics = dict[str, dict[str, dict[str, float | None]]]  # by model, data set and metric


@dataclass(frozen=True)
class FinishedRun:
    """Finished run in a comparison."""

    name: str
    # Metrics by model and data set. A training run has the models `after` (the trained one), `before` and `bm25` (its
    # baselines). The models of an evaluation have their own names.
    metrics: Metrics
    splits: Mapping[str, str]
    settings: Mapping[str, str]  # values as text, by `section.name`
    curves: Mapping[str, Curve] = field(default_factory=dict)  # `loss` and `dev_loss` by step; empty for an evaluation
    # Content of `per_query/DATASET.json`, by data set.
    queries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained: bool = False


def read_directory(folder: Path, name: str) -> FinishedRun:
    """Read the finished run of a directory."""
    if variants := sorted((folder / "variants").glob("*/*/")):
        remedy = f"give directories of its variants, such as {variants[-1]}; {folder / 'study.md'} compares all"
        raise ConfigError("holds a study", str(folder), remedy)
    if (folder / RESULTS).is_file():
        return _evaluation(folder, name)
    if (folder / METRICS).is_file():
        return _training(folder, name)
    if (folder / TRIALS).is_file():
        raise ConfigError("holds a sweep", str(folder), f"give {folder / 'best'}, the best trial, when the sweep ends")
    if (folder / CONFIG).is_file():
        raise ConfigError("holds a run that is not finished", str(folder), "finish it with the command that started it")
    raise ConfigError("holds no run", str(folder), "give a directory of `raytriever train` or `raytriever evaluate`")


def _training(folder: Path, name: str) -> FinishedRun:
    # In a curriculum, `steps.jsonl` of the whole run is incomplete, so read those of its trainings.
    curves = {name: end_to_end(training_folders(folder), name) for name in CURVES}
    return replace(
        _evaluation(folder / EVALUATION, name), settings=_settings(folder / CONFIG), curves=curves, trained=True
    )


def _evaluation(folder: Path, name: str) -> FinishedRun:
    results = Results.read(folder)
    if not any(results.models.values()):
        raise StorageError("holds no metrics", str(folder / RESULTS), "evaluate again")
    splits = {dataset: about.split for dataset, about in results.about.items()}
    settings = {key: value for key, value in flatten(results.request).items() if value != str(None)}
    return FinishedRun(name, results.models, splits, settings, queries=read_queries(folder))


def _settings(path: Path) -> dict[str, str]:
    remedy = "write it again with the command of the run"
    try:
        content = conform(read_yaml(path, remedy), str(path), dict[str, Any], remedy)
    except FileNotFoundError:
        return {}
    return flatten({key: value for key, value in content.items() if key not in NOT_SETTINGS})


class MlflowRuns:
    """Reader of runs from the tracking server or database at `tracking_uri`."""

    def __init__(self) -> None:
        self._uri = tracking_uri()
        self._shown = masked(self._uri)
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        if self._uri.startswith(SQLITE) and not Path(self._uri.removeprefix(SQLITE)).is_file():
            # Without this check, MLflow would create an empty database.
            raise ConfigError("no such database", self._shown, "set MLFLOW_TRACKING_URI to your server or database")
        check_uri(self._uri)
        from mlflow import MlflowClient

        with self._mlflow_errors("does not answer"):
            self._client = MlflowClient(tracking_uri=self._uri)

    def by_id(self, run_id: str) -> FinishedRun:
        """Return the run that has this id."""
        with self._mlflow_errors(f"does not know the run {run_id!r}"):
            return self._read(self._client.get_run(run_id))

    def by_filter(self, query: str) -> list[FinishedRun]:
        """Return the finished runs among the newest `MAX_RUNS` matches of an MLflow search filter, oldest first."""
        with self._mlflow_errors(f"does not understand {query!r}"):
            experiment = self._client.get_experiment_by_name(experiment_name())
            experiments = [experiment.experiment_id] if experiment else []
            matches = self._client.search_runs(
                experiments, query, max_results=MAX_RUNS, order_by=["attributes.start_time DESC"]
            )
            runs = [self._read(run) for run in matches if _is_finished(run)]
        if not runs:
            what = f"no finished training or evaluation matches {query!r}"
            raise ConfigError(what, self._shown, "try the filter in MLflow's UI")
        return runs[::-1]  # the search returns the newest first

    def _read(self, run: Any) -> FinishedRun:
        run_id, command = run.info.run_id, run.data.tags.get(COMMAND)
        if command == "tune":
            remedy = f"give its trials by the filter \"tags.mlflow.parentRunId = '{run_id}'\""
            raise ConfigError(f"run {run_id} is a sweep", self._shown, remedy)
        if not _is_finished(run):
            raise ConfigError(f"run {run_id} is not a finished training or evaluation", self._shown, "give another run")
        name = str(run.info.run_name or run_id)
        with TemporaryDirectory() as folder:
            with self._mlflow_errors("cannot download the artifacts of a run"):
                stored = {artifact.path for artifact in self._client.list_artifacts(run_id)}
                for artifact in stored.intersection((RESULTS, PER_QUERY)):
                    self._client.download_artifacts(run_id, artifact, folder)
            finished = _evaluation(Path(folder), name)
        if command == "evaluate":
            return finished
        points = {name: self._client.get_metric_history(run_id, name) for name in CURVES if name in run.data.metrics}
        curves = {
            name: sorted({point.step: point.value for point in history}.items()) for name, history in points.items()
        }
        return replace(finished, settings=dict(run.data.params), curves=curves, trained=True)

    def _mlflow_errors(self, problem: str) -> AbstractContextManager[None]:
        return mlflow_errors(self._shown, problem, "give a run id or a filter that works in MLflow's UI")


def _is_finished(run: Any) -> bool:
    if run.data.tags.get(COMMAND) == "train":
        return any(name.startswith("after/") for name in run.data.metrics)
    return run.data.tags.get(COMMAND) == "evaluate" and run.info.status == "FINISHED"
