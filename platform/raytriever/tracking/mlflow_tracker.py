"""MLflow behind the tracker: one run, continued by its id, metrics in batches.

The database is named by an absolute address, because Ray's workers and jobs run in directories of their own and a
relative one would scatter databases over them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raytriever.errors import ConfigError, StorageError
from raytriever.tracking.tracker import DatasetRecord, Point

EXPERIMENT = "raytriever"
METRICS_A_REQUEST = 1000
PARAMS_A_REQUEST = 100


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or `sqlite:///mlflow.db` in the current directory, made absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


class MlflowTracker:
    """A `Tracker` over one MLflow run.

    Args:
        uri: of the tracking server or database.
        run_name: shown in the UI.
        run_id: a run to continue; a new one is made when None or when the server does not know it.
    """

    def __init__(self, uri: str, run_name: str, run_id: str | None = None) -> None:
        # Loading a model out of an artifact must never unpickle it.
        os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self._mlflow_error = MlflowException
        try:
            self._client = MlflowClient(tracking_uri=uri)
            self.run_id = self._continue(run_id) or self._create(uri, run_name)
        except MlflowException as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"MLflow does not answer ({reason})", uri, "start the server or mend MLFLOW_TRACKING_URI"
            ) from error

    def _continue(self, run_id: str | None) -> str | None:
        if run_id is None:
            return None
        try:
            self._client.get_run(run_id)
        except self._mlflow_error as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _create(self, uri: str, run_name: str) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            # Beside the database, and absolute, so that the UI finds the files from any directory.
            place = (Path.cwd() / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
            experiment_id = self._client.create_experiment(EXPERIMENT, artifact_location=place)
        else:
            experiment_id = experiment.experiment_id
        return str(self._client.create_run(experiment_id, run_name=run_name).info.run_id)

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Log flattened settings as params, the data set as an input, and tags."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        known = self._client.get_run(self.run_id).data.params  # params cannot change: log the missing ones
        params = [Param(name, value) for name, value in flatten(config).items() if name not in known]
        for start in range(0, len(params), PARAMS_A_REQUEST):
            self._client.log_batch(self.run_id, params=params[start : start + PARAMS_A_REQUEST])
        self._client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        record = Dataset(
            name=dataset.name,
            digest=dataset.digest[:32],
            source_type="local",
            source=dataset.source,
            profile=json.dumps(dict(dataset.counts)),
        )
        self._client.log_inputs(self.run_id, [DatasetInput(record, [InputTag("mlflow.data.context", "training")])])

    def log(self, points: Sequence[Point]) -> None:
        """Log metric values, at most a thousand a request."""
        from mlflow.entities import Metric

        metrics = [Metric(point.name, point.value, point.milliseconds, point.step) for point in points]
        for start in range(0, len(metrics), METRICS_A_REQUEST):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_A_REQUEST])

    def log_file(self, path: Path, folder: str = "") -> None:
        """Copy a file or a directory into the run's artifacts."""
        try:
            if path.is_dir():
                self._client.log_artifacts(self.run_id, str(path), folder or path.name)
            else:
                self._client.log_artifact(self.run_id, str(path), folder or None)
        except OSError as error:
            raise StorageError(
                f"cannot be copied into the run's artifacts ({error.strerror})", str(path), "free some space"
            ) from error

    def finish(self, status: str) -> None:
        """Set the run's final status."""
        self._client.set_terminated(self.run_id, status)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.name: text`, the form of MLflow's params."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)
    return flat
