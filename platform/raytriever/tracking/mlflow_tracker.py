"""MLflow behind the tracker: one run, continued by its id, perhaps with children, metrics in batches.

The database is named by an absolute address, because Ray's workers and jobs run in directories of their own and a
relative one would scatter databases over them.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raytriever.errors import ConfigError, StorageError
from raytriever.storage import check_writable
from raytriever.tracking.tracker import DatasetRecord, Point

EXPERIMENT = "raytriever"
PARENT = "mlflow.parentRunId"
METRICS_A_REQUEST = 1000
PARAMS_A_REQUEST = 100
SQLITE = "sqlite:///"
REASON_CHARACTERS = 300
FIRST_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or `sqlite:///mlflow.db` in the current directory, made absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


class MlflowTracker:
    """A `Tracker` over one MLflow run.

    Args:
        uri: of the tracking server or database.
        run_name: shown in the UI.
        run_id: a run to continue; a new one is made when None, or when the server does not know it
            or has deleted it.
        parent: the id of the run within which this one is shown.
    """

    def __init__(self, uri: str, run_name: str, run_id: str | None = None, parent: str | None = None) -> None:
        # Loading a model out of an artifact must never unpickle it.
        os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        # What fails is raised to us too; told by MLflow's log as well, one line would become thirty.
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
        if uri.startswith(SQLITE):
            # MLflow would ask a database that cannot be opened for minutes.
            check_writable(Path(uri.removeprefix(SQLITE)).parent)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        self._errors = (MlflowException, SQLAlchemyError)
        self._not_known = MlflowException
        self._uri = uri
        self._tags = {PARENT: parent} if parent else {}
        with self._telling(), _impatient():
            self._client = MlflowClient(tracking_uri=uri)
            self.run_id = self._continue(run_id) or self._create(uri, run_name)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell what MLflow raises as one `ConfigError` line."""
        try:
            yield
        except self._errors as error:
            reason = textwrap.shorten(str(error), REASON_CHARACTERS, placeholder=" ...")
            raise ConfigError(
                f"MLflow does not answer ({reason})",
                self._uri,
                "start the server, free its disk, or mend MLFLOW_TRACKING_URI",
            ) from error

    def _continue(self, run_id: str | None) -> str | None:
        if run_id is None:
            return None
        try:
            if self._client.get_run(run_id).info.lifecycle_stage == "deleted":
                return None
        except self._not_known as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        self._client.update_run(run_id, status="RUNNING")
        for name, value in self._tags.items():
            self._client.set_tag(run_id, name, value)  # the parent may be another: see above
        return run_id

    def _create(self, uri: str, run_name: str) -> str:
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            # Beside the database, and absolute, so that the UI finds the files from any directory.
            place = (Path.cwd() / "mlartifacts").as_uri() if uri.startswith("sqlite:") else None
            experiment_id = self._client.create_experiment(EXPERIMENT, artifact_location=place)
        else:
            experiment_id = experiment.experiment_id
        return str(self._client.create_run(experiment_id, run_name=run_name, tags=self._tags).info.run_id)

    def child(self, run_name: str, run_id: str | None = None) -> MlflowTracker:
        """A run of the same database whose parent this one is."""
        return MlflowTracker(self._uri, run_name, run_id, parent=self.run_id)

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Log flattened settings as params, the data set as an input, and tags."""
        with self._telling():
            self._describe(config, dataset, tags)

    def _describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
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
        with self._telling():
            for start in range(0, len(metrics), METRICS_A_REQUEST):
                self._client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_A_REQUEST])

    def log_file(self, path: Path, folder: str = "") -> None:
        """Copy a file or a directory into the run's artifacts."""
        try:
            with self._telling():
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
        with self._telling():
            self._client.set_terminated(self.run_id, status)


@contextmanager
def _impatient() -> Iterator[None]:
    """Ask a server twice, not for minutes: at the start of a run, one that does not answer is a wrong address.

    Later requests get MLflow's own patience, which outlasts the restart of a server; what a user has set counts.
    """
    ours = {name: value for name, value in FIRST_REQUESTS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.name: text`, the form of MLflow's params; the items of a list count from 1."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, list):
            value = {str(number): item for number, item in enumerate(value, 1)}
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)
    return flat
