"""MLflow tracker: the check of its address, the server, and one run, resumed by its id, with metrics in batches.

MLflow tries a database that cannot be opened for minutes, so `check_uri` finds a wrong address first, without importing
MLflow: an unknown scheme, a missing driver, a broken SQLite file, a server that does not listen. The address of the
database is absolute, because Ray's workers and jobs run in directories of their own."""

from __future__ import annotations

import json
import os
import socket
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from raytriever.activity import activity
from raytriever.errors import ConfigError, StorageError
from raytriever.masking import masked
from raytriever.storage import check_writable, disk_errors
from raytriever.tracking.tracker import DatasetRecord, Point

SQLITE = "sqlite:///"
# The databases that MLflow knows, by the default port of their servers, and the package of their usual driver.
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433, "http": 80, "https": 443}
DRIVERS = {"postgresql": "postgresql+psycopg2://... with psycopg2-binary", "mysql": "mysql+pymysql://... with pymysql"}
HEADER = b"SQLite format 3\0"
ANSWER_SECONDS = 5.0
_REMEDY = "mend MLFLOW_TRACKING_URI, or unset it for mlflow.db in the current folder"


def check_uri(uri: str) -> None:
    """Refuse an address of MLflow at which nothing can be tracked; passes what only MLflow itself can judge.

    Args:
        uri: the address; users and passwords in it are never shown.

    Raises:
        ConfigError: the address, its driver or its server.
        StorageError: an SQLite file cannot be written.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        if uri.startswith("sqlite:"):
            raise _refusal(uri, "is no address of an SQLite file", "write sqlite:///FILE, with three slashes")
        return
    name = scheme.partition("+")[0]
    if name == "sqlite":
        _check_sqlite(uri)
        return
    if name not in PORTS:
        if name in ("file", "databricks", "databricks-uc", "uc"):
            return
        known = ", ".join(["sqlite:///FILE", *(f"{one}://" for one in PORTS)])
        raise _refusal(uri, f"has the unknown scheme {name!r}", f"use one of {known}")
    try:
        address = urlsplit(uri)
        host, port = address.hostname, address.port or PORTS[name]
    except ValueError as error:
        raise _refusal(uri, f"is no address ({error})") from error
    if name not in ("http", "https"):
        _check_driver(uri, name)
    if host and not _goes_through_proxy(address):
        try:
            socket.create_connection((host, port), ANSWER_SECONDS).close()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _refusal(
                uri,
                f"MLflow does not answer ({reason} at {host}:{port})",
                "start the server, or mend MLFLOW_TRACKING_URI",
            ) from error


def _refusal(uri: str, what: str, remedy: str = _REMEDY) -> ConfigError:
    return ConfigError(what, masked(uri), remedy)


def _check_sqlite(uri: str) -> None:
    if not uri.startswith(SQLITE) or not uri.removeprefix(SQLITE):
        raise _refusal(uri, "names no file", "write sqlite:///FILE, with three slashes")
    file = Path(uri.removeprefix(SQLITE).partition("?")[0])
    with disk_errors(masked(uri)):
        if file.is_dir():
            raise _refusal(uri, "is a folder", f"name a file in it, as sqlite:///{file / 'mlflow.db'}")
        if not file.parent.is_dir():
            raise _refusal(uri, f"the folder {file.parent} does not exist", "make it, or name a file in another folder")
        check_writable(file.parent)  # SQLite writes its journal there
        if not file.exists():
            return
        with file.open("r+b") as stream:
            begins = stream.read(len(HEADER))
    if begins not in (b"", HEADER):
        raise _refusal(uri, "is no SQLite database", "name another file, or move this one away")


def _check_driver(uri: str, name: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        known = f", or {DRIVERS[name]}" if name in DRIVERS else ""
        raise _refusal(
            uri, f"needs the Python package {error.name}, which is not installed", f"pip install {error.name}{known}"
        ) from error
    except (ArgumentError, ValueError) as error:
        raise _refusal(uri, f"is no address of a database ({masked(str(error))})") from error


def _goes_through_proxy(address: SplitResult) -> bool:
    """Whether a request would be sent to another server first, which alone may reach this one."""
    if address.scheme not in ("http", "https") or not address.hostname:
        return False
    return bool(getproxies().get(address.scheme)) and not proxy_bypass(address.hostname)


EXPERIMENT = "raytriever"
PARENT = "mlflow.parentRunId"
KEY = "raytriever.key"
METRICS_A_REQUEST = 1000
PARAMS_A_REQUEST = 100
PARAM_CHARACTERS = 6000  # more are refused
REASON_CHARACTERS = 300
# Whoever asks decides whether to ask again: a request that is repeated below could make a run twice.
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", TIMEOUT: "10"}
FILE_TIMEOUT = "120"  # a server may pass a file on to a slower place before it answers


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or `sqlite:///mlflow.db` in the current directory, made absolute."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


class MlflowServer:
    """A tracking server or database.

    Args:
        uri: its address; users and passwords in it are never shown.

    Raises:
        ConfigError: it does not answer.
        StorageError: the database could not be written.
    """

    def __init__(self, uri: str) -> None:
        # Loading a model out of an artifact must never unpickle it.
        os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"
        # What fails is raised to us too; told by MLflow's log as well, one line would become thirty.
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
        for name, value in REQUESTS.items():
            os.environ.setdefault(name, value)
        check_uri(uri)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        self._errors = (MlflowException, SQLAlchemyError)
        self.not_known = MlflowException
        self._uri = uri
        self.shown = masked(uri)
        with activity(f"opening MLflow at {self.shown}"), self.telling():
            self.client = MlflowClient(tracking_uri=uri)
            self.client.get_experiment_by_name(EXPERIMENT)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell what MLflow raises as one `ConfigError` line."""
        try:
            yield
        except self._errors as error:
            reason = textwrap.shorten(masked(str(error)), REASON_CHARACTERS, placeholder=" ...")
            raise ConfigError(
                f"MLflow does not answer ({reason})",
                self.shown,
                "start the server, free its disk, or mend MLFLOW_TRACKING_URI",
            ) from error

    def experiment(self) -> str:
        """The id of the experiment in which all runs are, made where there is none."""
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return str(experiment.experiment_id)
        # Beside the database, and absolute, so that the UI finds the files from any directory.
        place = (Path.cwd() / "mlartifacts").as_uri() if self._uri.startswith("sqlite:") else None
        try:
            return str(self.client.create_experiment(EXPERIMENT, artifact_location=place))
        except self.not_known as error:
            made = self.client.get_experiment_by_name(EXPERIMENT)  # by another run, a moment ago
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or made is None:
                raise
            return str(made.experiment_id)

    def connect(
        self, run_name: str, run_id: str | None = None, parent: str | None = None, key: str | None = None
    ) -> MlflowTracker:
        """A run of this server; see `MlflowTracker`."""
        return MlflowTracker(self, run_name, run_id, parent, key)


class MlflowTracker:
    """One MLflow run: a `Tracker` that raises where the server fails.

    Args:
        server: that keeps it.
        run_name: shown in the UI.
        run_id: a run to continue; a new one is made when None, or when the server does not know it
            or has deleted it.
        parent: the id of the run within which this one is shown.
        key: a text of the run's own, by which a run is found that was made while its answer was lost.

    Raises:
        ConfigError: the server does not answer.
    """

    def __init__(
        self,
        server: MlflowServer,
        run_name: str,
        run_id: str | None = None,
        parent: str | None = None,
        key: str | None = None,
    ) -> None:
        self._client, self._telling, self._not_known = server.client, server.telling, server.not_known
        self._tags = {name: value for name, value in ((PARENT, parent), (KEY, key)) if value}
        with self._telling():
            self.run_id = self._continue(run_id) or self._create(server.experiment(), run_name, key)

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

    def _create(self, experiment: str, run_name: str, key: str | None) -> str:
        if key is not None and (made := self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'")):
            return str(made[0].info.run_id)
        return str(self._client.create_run(experiment, run_name=run_name, tags=self._tags).info.run_id)

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        """Log flattened settings as params, the data set as an input, and tags."""
        with self._telling():
            self._describe(config, dataset, tags)

    def _describe(self, config: Mapping[str, Any], dataset: DatasetRecord, tags: Mapping[str, str]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        known = self._client.get_run(self.run_id).data.params  # params cannot change: log the missing ones
        params = [Param(name, value[:PARAM_CHARACTERS]) for name, value in flatten(config).items() if name not in known]
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
            with self._telling(), _patient():
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
def _patient() -> Iterator[None]:
    """Wait longer for an answer, unless the user has said how long."""
    before = os.environ.get(TIMEOUT)
    if before == REQUESTS[TIMEOUT]:
        os.environ[TIMEOUT] = FILE_TIMEOUT
    try:
        yield
    finally:
        if before == REQUESTS[TIMEOUT]:
            os.environ[TIMEOUT] = before


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
