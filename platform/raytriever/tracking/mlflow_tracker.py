"""MLflow tracker: check of the address, server, and run. A run is resumed by its id; metrics are batched.

If a database cannot be opened, MLflow retries for minutes. So `check_uri` first looks for a wrong address without
importing MLflow: an unknown scheme, a missing driver, a broken SQLite file, a server that does not answer. The address
of the database is absolute, because Ray's workers and jobs have other working directories."""

from __future__ import annotations

import json
import os
import shlex
import socket
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from raytriever.core.errors import ConfigError, StorageError, disk_errors, setting
from raytriever.core.masking import masked
from raytriever.core.progress import activity
from raytriever.core.store.disk import check_writable
from raytriever.tracking.tracker import DatasetRecord, Point, RemoteRun

PROJECT = "raytriever"
EXPERIMENT_NAME = "MLFLOW_EXPERIMENT_NAME"
PARENT = "mlflow.parentRunId"
KEY = "raytriever.key"
METRICS_PER_REQUEST = 1000  # limit of MLflow
PARAMS_PER_REQUEST = 100  # limit of MLflow
PARAM_CHARACTERS = 6000  # maximum length of a value that MLflow accepts
REASON_CHARACTERS = 300
# MLflow must not retry, because a repeated request could create a run twice. The outbox retries instead.
TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", TIMEOUT: "10"}
NO_ADDRESSES = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"  # otherwise MLflow prints addresses of trace pages
MOST_COMPARED = 20  # maximum number of runs in the address of a comparison
FILE_TIMEOUT = "120"  # seconds; a server may copy a file to slower storage before it answers
SQLITE = "sqlite:///"
# Default ports of the servers that MLflow supports, and the packages of their usual drivers.
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433, "http": 80, "https": 443}
DRIVERS = {"postgresql": "the extra: raytriever[postgresql]", "mysql": "mysql+pymysql://... with pymysql"}
HEADER = b"SQLite format 3\0"
CONNECT_SECONDS = 5.0
_REMEDY = "correct MLFLOW_TRACKING_URI, or unset it for mlflow.db in the current folder"


def check_uri(uri: str) -> None:
    """Check an address of MLflow, as far as this is possible without importing MLflow. Raise `ConfigError` if the
    address is not valid, its driver is missing, or its server does not answer. Raise `StorageError` if an SQLite file
    is not writable.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        if uri.startswith("sqlite:"):
            raise _refusal(uri, "is not the address of an SQLite file", "write sqlite:///FILE, with three slashes")
        return
    name = scheme.partition("+")[0]
    if name == "sqlite":
        _check_sqlite(uri)
        return
    if name not in PORTS:
        if name in ("file", "databricks", "databricks-uc", "uc"):
            return
        schemes = ", ".join(["sqlite:///FILE", *(f"{port}://" for port in PORTS)])
        raise _refusal(uri, f"has the unknown scheme {name!r}", f"use one of {schemes}")
    try:
        address = urlsplit(uri)
        host, port = address.hostname, address.port or PORTS[name]
    except ValueError as error:
        raise _refusal(uri, f"is not a valid address ({error})") from error
    if name not in ("http", "https"):
        _check_driver(uri, name)
    # Do not connect directly: a proxy may be the only way to reach the server.
    has_proxy = scheme in ("http", "https") and getproxies().get(scheme) and host and not proxy_bypass(host)
    if host and not has_proxy:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            what = f"MLflow does not answer ({reason} at {host}:{port})"
            raise _refusal(uri, what, "start the server, or correct MLFLOW_TRACKING_URI") from error


def _refusal(uri: str, what: str, remedy: str = _REMEDY) -> ConfigError:
    return ConfigError(what, masked(uri), remedy)


def _check_sqlite(uri: str) -> None:
    if not uri.startswith(SQLITE) or not uri.removeprefix(SQLITE):
        raise _refusal(uri, "names no file", "write sqlite:///FILE, with three slashes")
    file = Path(uri.removeprefix(SQLITE).partition("?")[0])
    with disk_errors(masked(uri)):
        if file.is_dir():
            raise _refusal(uri, "is a folder", f"give a file in it, such as sqlite:///{file / 'mlflow.db'}")
        if not file.parent.is_dir():
            remedy = "create it, or give a file in another folder"
            raise _refusal(uri, f"the folder {file.parent} does not exist", remedy)
        check_writable(file.parent)  # SQLite writes its journal there
        if not file.exists():
            return
        with file.open("r+b") as stream:
            header = stream.read(len(HEADER))
    if header not in (b"", HEADER):
        raise _refusal(uri, "is not an SQLite database", "give another file, or move this one away")


def _check_driver(uri: str, name: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except ImportError as error:
        extra = f", or {DRIVERS[name]}" if name in DRIVERS else ""
        what = f"needs the Python package {error.name}, which is not installed"
        raise _refusal(uri, what, f"pip install {error.name}{extra}") from error
    except (ArgumentError, ValueError) as error:
        raise _refusal(uri, f"is not the address of a database ({masked(str(error))})") from error


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the absolute address of `mlflow.db` in the current directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def experiment_name() -> str:
    """Return the name of the experiment of all runs: `MLFLOW_EXPERIMENT_NAME`, or `raytriever`."""
    return os.environ.get(EXPERIMENT_NAME) or PROJECT


@contextmanager
def mlflow_errors(address: str, problem: str, remedy: str) -> Iterator[None]:
    """Convert errors of MLflow and of its database to a `ConfigError` of one line."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        reason = textwrap.shorten(masked(str(error)), REASON_CHARACTERS, placeholder=" ...")
        raise ConfigError(f"MLflow {problem} ({reason})", address, remedy) from error


def comparison_view(view: str, run_ids: Sequence[str]) -> str:
    """Return the address of the page that compares runs of an experiment. `view` comes from `MlflowServer.view`; it is
    returned unchanged for less than two runs, or more than `MOST_COMPARED`."""
    server, _, rest = view.partition("#/experiments/")
    experiment, _, end = rest.partition("/runs")
    if not rest or not 2 <= len(run_ids) <= MOST_COMPARED:
        return view
    runs, experiments = (quote(json.dumps(ids, separators=(",", ":")), safe=",") for ids in (run_ids, [experiment]))
    return f"{server}#/compare-runs?runs={runs}&experiments={experiments}{end}"


class MlflowServer:
    """MLflow tracking server or database."""

    name, title = "mlflow", "MLflow"

    def __init__(self, uri: str) -> None:
        # MLflow must never unpickle a model in an artifact.
        os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"
        # Without this, MLflow also logs thirty lines for each error that it raises.
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
        for name, value in {**REQUESTS, NO_ADDRESSES: "true"}.items():
            os.environ.setdefault(name, value)
        check_uri(uri)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self.exception = MlflowException
        self._uri = uri
        self.address = masked(uri)
        with activity(f"opening MLflow at {self.address}"), self.translate_errors():
            self.client = MlflowClient(tracking_uri=uri)
            self.client.get_experiment_by_name(experiment_name())

    @property
    def is_remote(self) -> bool:
        """Return whether the server is on another machine, whose folders differ from those here."""
        address = urlsplit(self._uri)
        if address.scheme not in ("http", "https") or not address.hostname:
            return False
        with suppress(OSError):
            for family, _, _, _, found in socket.getaddrinfo(address.hostname, None, type=socket.SOCK_STREAM):
                # A socket can bind only addresses of this machine. A host may also have a disabled IPv6 address.
                with suppress(OSError), socket.create_server((str(found[0]), 0), family=family):
                    return False
        return True

    def translate_errors(self) -> AbstractContextManager[None]:
        """Convert errors of MLflow in a block to a `ConfigError` of one line."""
        return mlflow_errors(
            self.address, "does not answer", "start the server, free its disk, or correct MLFLOW_TRACKING_URI"
        )

    def experiment(self) -> str:
        """Return the id of the experiment of all runs. Create it if it does not exist."""
        name = experiment_name()
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            if experiment.lifecycle_stage == "deleted":
                raise ConfigError(
                    f"the experiment {name!r} was deleted",
                    self.address,
                    f"restore it with `mlflow experiments restore --experiment-id {experiment.experiment_id}`, or "
                    f"choose another one with {setting('experiment')} NAME",
                )
            return str(experiment.experiment_id)
        # The artifacts are next to the database. Their path is absolute, so that the UI works from any directory.
        location = (Path.cwd() / "mlartifacts").as_uri() if self._uri.startswith("sqlite:") else None
        try:
            return str(self.client.create_experiment(name, artifact_location=location))
        except self.exception as error:
            existing = self.client.get_experiment_by_name(name)  # another run has just created it
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or existing is None:
                raise
            return str(existing.experiment_id)

    def view(self, experiment: str) -> str:
        """Return the address of an experiment's runs; for a database, the command that starts a server comes first.
        The root of the server would show another page."""
        page = f"#/experiments/{experiment}/runs"
        if self._uri.startswith("http"):
            address = urlsplit(self._uri)
            return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}/{page}"
        return f"mlflow ui --backend-store-uri {shlex.quote(self.address)}  (then open http://127.0.0.1:5000/{page})"

    def connect(
        self,
        run_name: str,
        run_id: str | None = None,
        parent: str | None = None,
        key: str | None = None,
        points: int = 0,
    ) -> MlflowTracker:
        """Create or resume a run on this server; see `TrackerClient`. A new run is created if `run_id` is None, or if
        the server does not know it or has deleted it. The server stores a point once, even if it is sent twice."""
        return MlflowTracker(self, run_name, run_id, parent, key, points)


class MlflowTracker(RemoteRun):
    """One MLflow run, made by `MlflowServer.connect`. Its methods raise an error if the server fails."""

    def __init__(
        self, server: MlflowServer, run_name: str, run_id: str | None, parent: str | None, key: str | None, points: int
    ) -> None:
        self._client, self._translate_errors, self._exception = server.client, server.translate_errors, server.exception
        self._is_remote = server.is_remote
        self._tags = {name: value for name, value in ((PARENT, parent), (KEY, key)) if value}
        with self._translate_errors():
            self.run_id = self._resume(run_id) or self._create(server.experiment(), run_name, key)
            self.view = server.view(self._client.get_run(self.run_id).info.experiment_id)
        self.points = points if self.run_id == run_id else 0

    def _resume(self, run_id: str | None) -> str | None:
        if run_id is None:
            return None
        try:
            if self._client.get_run(run_id).info.lifecycle_stage == "deleted":
                return None
        except self._exception as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        self._client.update_run(run_id, status="RUNNING")
        for name, value in self._tags.items():
            self._client.set_tag(run_id, name, value)  # a new run may have replaced the parent
        return run_id

    def _create(self, experiment: str, run_name: str, key: str | None) -> str:
        if key is not None and (existing := self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'")):
            return str(existing[0].info.run_id)
        return str(self._client.create_run(experiment, run_name=run_name, tags=self._tags).info.run_id)

    def describe(self, config: Mapping[str, Any], dataset: DatasetRecord | None, tags: Mapping[str, str]) -> None:
        """Log flattened settings as params, the data set as an input, and tags."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        with self._translate_errors():
            # MLflow refuses to change params, so log only the missing ones.
            existing = self._client.get_run(self.run_id).data.params
            new = {name: value for name, value in flatten(config).items() if name not in existing}
            params = [Param(name, value[:PARAM_CHARACTERS]) for name, value in new.items()]
            for start in range(0, len(params), PARAMS_PER_REQUEST):
                self._client.log_batch(self.run_id, params=params[start : start + PARAMS_PER_REQUEST])
            self._client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
            if dataset is not None:
                profile = json.dumps(dict(dataset.counts))
                record = Dataset(dataset.name, dataset.digest[:32], "local", dataset.source, profile=profile)
                used = DatasetInput(record, [InputTag("mlflow.data.context", "training")])
                self._client.log_inputs(self.run_id, [used])

    def log(self, points: Sequence[Point]) -> None:
        """Log metric values, at most `METRICS_PER_REQUEST` per request."""
        from mlflow.entities import Metric

        metrics = [Metric(point.name, point.value, point.milliseconds, point.step) for point in points]
        with self._translate_errors():
            for start in range(0, len(metrics), METRICS_PER_REQUEST):
                self._client.log_batch(self.run_id, metrics=metrics[start : start + METRICS_PER_REQUEST])

    def log_file(self, path: Path, folder: str = "") -> None:
        """Copy a file or a directory into the run's artifacts."""
        root = self._artifact_root
        if root is not None and self._is_remote and not root.exists():
            raise StorageError(*_server_folder(root))
        try:
            with self._translate_errors(), _longer_timeout():
                if path.is_dir():
                    self._client.log_artifacts(self.run_id, str(path), folder or path.name)
                else:
                    self._client.log_artifact(self.run_id, str(path), folder or None)
        except OSError as error:
            if root is not None and not (root.is_dir() and os.access(root, os.W_OK)):
                raise StorageError(*_server_folder(root)) from error
            what = f"cannot be copied to the artifacts of the run ({error.strerror})"
            raise StorageError(what, str(path), "free some space") from error

    @cached_property
    def _artifact_root(self) -> Path | None:
        """Folder of all runs' artifacts, if it is local: this process then writes directly to it. Else None."""
        with self._translate_errors():
            uri = urlsplit(self._client.get_run(self.run_id).info.artifact_uri)
        # The path of the URI ends in RUN/artifacts.
        return Path(unquote(uri.path)).parent.parent if uri.scheme in ("", "file") else None

    def finish(self, status: str) -> None:
        """Set the run's final status."""
        with self._translate_errors():
            self._client.set_terminated(self.run_id, status)


def _server_folder(root: Path) -> tuple[str, str, str]:
    return (
        "is the folder of MLflow's artifacts, but it is missing on this machine, or not writable",
        str(root),
        "start the server with --artifacts-destination FOLDER instead of --default-artifact-root, or mount the folder",
    )


@contextmanager
def _longer_timeout() -> Iterator[None]:
    before = os.environ.get(TIMEOUT)
    if before == REQUESTS[TIMEOUT]:
        os.environ[TIMEOUT] = FILE_TIMEOUT
    try:
        yield
    finally:
        if before == REQUESTS[TIMEOUT]:
            os.environ[TIMEOUT] = before


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as texts by `section.name`, for MLflow's params. Items of a list are numbered from 1."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, list):
            value = {str(number): item for number, item in enumerate(value, 1)}
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)
    return flat
