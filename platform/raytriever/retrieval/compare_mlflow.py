"""Finished runs from MLflow: by their ids, or all that a filter finds."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raytriever.errors import ConfigError
from raytriever.masking import masked
from raytriever.retrieval.compare_read import CURVES, read_queries
from raytriever.retrieval.compare_run import Figures, FinishedRun
from raytriever.retrieval.report_evaluation import PER_QUERY
from raytriever.tracking.mlflow_tracker import EXPERIMENT, tracking_uri
from raytriever.tracking.mlflow_uri import SQLITE, check_uri

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
        """What stands in a run's artifacts for every query; nothing of a run that kept none."""
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
