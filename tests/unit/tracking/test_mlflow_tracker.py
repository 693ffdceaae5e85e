"""Runs in a real MLflow database, and wrong addresses of it."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from processes import free_port

from raytriever.core.errors import ConfigError, StorageError, UserError
from raytriever.core.masking import masked
from raytriever.tracking import mlflow_tracker
from raytriever.tracking.mlflow_tracker import MlflowServer, check_uri, comparison_view, tracking_uri
from raytriever.tracking.tracker import DatasetRecord, Point, Tracker, closing

DATA = DatasetRecord("letters", "data/letters", "ab" * 32, {"documents": 160, "train_queries": 96})


@pytest.fixture
def folder(database: Path) -> Path:
    return database.parent


@pytest.fixture
def uri(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tracking_uri()


@pytest.fixture
def client(uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=uri)


def test_the_address_of_the_database_is_absolute(folder: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert uri == f"sqlite:///{folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert tracking_uri() == "http://elsewhere"


def test_settings_data_numbers_and_files_of_a_run(
    uri: str, client: MlflowClient, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker: Tracker = MlflowServer(uri).connect("first")
    config = {"loss": {"loss": "mw", "temperature": 0.01}, "training": {"epochs": None}}
    tracker.describe(config, DATA, {"config_hash": "cafe"})
    # Batches are cut where the server would refuse them: here after two.
    monkeypatch.setattr(mlflow_tracker, "METRICS_PER_REQUEST", 2)
    tracker.log([Point("loss", 1 / (step + 1), step, 1000 + step) for step in range(5)])
    tracker.log([])
    tracker.log([Point("after/auc", 0.75, 5, 2000)])
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "roc.png").write_bytes(b"png")
    (tmp_path / "config.yaml").write_text("loss: {}")
    monkeypatch.chdir(tmp_path)  # where files go must not depend on where the process stands
    tracker.log_file(tmp_path / "figures")
    tracker.log_file(tmp_path / "config.yaml")
    tracker.finish("FINISHED")

    run = client.get_run(tracker.run_id)
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"loss.loss": "mw", "loss.temperature": "0.01", "training.epochs": "None"}
    assert run.data.tags["config_hash"] == "cafe"
    assert run.data.metrics["after/auc"] == 0.75
    history = client.get_metric_history(tracker.run_id, "loss")
    assert [(m.step, m.value, m.timestamp) for m in history] == [(s, 1 / (s + 1), 1000 + s) for s in range(5)]
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest, given.dataset.source) == ("letters", "ab" * 16, "data/letters")
    assert json.loads(given.dataset.profile) == DATA.counts
    assert (given.tags[0].key, given.tags[0].value) == ("mlflow.data.context", "training")
    artifacts = folder / "mlartifacts" / tracker.run_id / "artifacts"
    assert sorted(str(file.relative_to(artifacts)) for file in artifacts.rglob("*.*")) == [
        "config.yaml",
        "figures/roc.png",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"figures", "config.yaml"}


def test_a_run_is_resumed_by_its_id(uri: str, client: MlflowClient) -> None:
    first = MlflowServer(uri).connect("continued")
    first.describe({"loss": {"loss": "mw"}}, DATA, {"config_hash": "a"})
    first.log([Point("loss", 0.5, 1, 1)])
    first.finish("KILLED")
    again = MlflowServer(uri).connect("continued", first.run_id)
    assert again.run_id == first.run_id
    assert client.get_run(first.run_id).info.status == "RUNNING"
    # Said again, with a setting that a newer version added and one that it writes differently.
    again.describe({"loss": {"loss": "MW", "margin": 0.1}}, DATA, {"config_hash": "a"})
    again.log([Point("loss", 0.25, 2, 2)])
    run = client.get_run(first.run_id)
    assert run.data.params == {"loss.loss": "mw", "loss.margin": "0.1"}
    assert len(run.inputs.dataset_inputs) == 1
    assert [m.value for m in client.get_metric_history(first.run_id, "loss")] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("ending", "status"), [(None, "FINISHED"), (KeyboardInterrupt, "KILLED"), (ValueError, "FAILED")]
)
def test_a_run_is_closed_with_the_status_of_its_block(
    uri: str, client: MlflowClient, ending: type[BaseException] | None, status: str
) -> None:
    tracker = MlflowServer(uri).connect("closed")

    def block() -> None:
        with closing(tracker):
            if ending:
                raise ending

    if ending:
        with pytest.raises(ending):
            block()
    else:
        block()
    assert client.get_run(tracker.run_id).info.status == status


def test_passwords_of_addresses_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "http://ada:correct-h@rse@127.0.0.1:9/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "battery-staple")
    with pytest.raises(ConfigError) as caught:
        MlflowServer(tracking_uri())
    assert str(caught.value).startswith("http://***@127.0.0.1:9/mlflow: MLflow does not answer (")
    assert "rse" not in str(caught.value)
    assert masked(f"to {uri} and a@b, with 'battery-staple'") == "to http://***@127.0.0.1:9/mlflow and a@b, with '***'"
    assert masked("postgresql://u:p%40ss@db.example/x?y=a@b sqlite:////tmp/a@b.db") == (
        "postgresql://***@db.example/x?y=a@b sqlite:////tmp/a@b.db"
    )


def test_a_server_that_is_silent_ends_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConfigError, match="MLflow does not answer"):
            MlflowServer(address)
        assert time.monotonic() - began < 10


def test_an_error_names_the_file_that_cannot_be_copied(uri: str, tmp_path: Path) -> None:
    tracker = MlflowServer(uri).connect("files")
    with pytest.raises(
        StorageError, match=rf"{tmp_path}/gone\.yaml: cannot be copied to the artifacts of the run \(No such"
    ):
        tracker.log_file(tmp_path / "gone.yaml")


def test_a_deleted_experiment_is_named_with_its_remedy(
    uri: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "losses")
    server = MlflowServer(uri)
    number = server.experiment()
    assert client.get_experiment(number).name == "losses"
    client.delete_experiment(number)
    with pytest.raises(ConfigError) as caught:
        server.connect("run")
    assert str(caught.value) == (
        f"{uri}: the experiment 'losses' was deleted; restore it with `mlflow experiments restore --experiment-id "
        f"{number}`, or choose another one with experiment NAME"
    )
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "more")
    assert client.get_run(server.connect("run").run_id).info.experiment_id != number


def test_artifacts_that_this_machine_cannot_write_are_named(
    uri: str, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_experiment("elsewhere", artifact_location="file:///proc/artifacts")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "elsewhere")
    (tmp_path / "a.txt").write_text("a")
    server = MlflowServer(uri)
    assert not server.is_remote
    with pytest.raises(
        StorageError, match=r"^/proc/artifacts: is the folder of MLflow's artifacts, but it is missing on this machine"
    ):
        server.connect("run").log_file(tmp_path / "a.txt")
    # A folder of another machine is not made here.
    folder = tmp_path / "of-the-server"
    client.create_experiment("remote", artifact_location=folder.as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "remote")
    monkeypatch.setattr(MlflowServer, "is_remote", True)
    with pytest.raises(StorageError, match="start the server with --artifacts-destination FOLDER"):
        MlflowServer(uri).connect("run").log_file(tmp_path / "a.txt")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("address", "remote"),
    [
        ("http://localhost", False),
        ("http://192.0.2.7:5000", True),
        ("http://[2001:db8::7]:5000", True),
        ("sqlite:///a", False),
    ],
)
def test_a_server_is_remote_if_its_address_is_not_of_this_machine(address: str, remote: bool) -> None:
    server = object.__new__(MlflowServer)
    server._uri = address
    assert server.is_remote is remote


def test_a_view_is_the_page_of_the_runs(uri: str, client: MlflowClient, folder: Path) -> None:
    first = MlflowServer(uri).connect("first")
    experiment = client.get_run(first.run_id).info.experiment_id
    page = f"(then open http://127.0.0.1:5000/#/experiments/{experiment}/runs)"
    assert first.view == f"mlflow ui --backend-store-uri {uri}  {page}"
    server = MlflowServer(uri)
    server._uri, server.address = "https://ada:secret@host/mlflow/", "https://***@host/mlflow/"
    assert server.view("7") == "https://host/mlflow/#/experiments/7/runs"


def test_the_view_of_several_runs_is_their_comparison() -> None:
    one = "http://host/#/experiments/7/runs"
    compared = comparison_view(one, ["ab", "cd"])
    assert compared == "http://host/#/compare-runs?runs=%5B%22ab%22,%22cd%22%5D&experiments=%5B%227%22%5D"
    served = comparison_view(f"mlflow ui --backend-store-uri sqlite:///m.db  (then open {one})", ["ab", "cd"])
    assert served == f"mlflow ui --backend-store-uri sqlite:///m.db  (then open {compared})"
    assert comparison_view(one, ["ab"]) == comparison_view(one, ["ab"] * 21) == one


def refusal(uri: str) -> str:
    with pytest.raises(UserError) as caught:
        check_uri(uri)
    return str(caught.value)


@pytest.mark.parametrize(
    ("uri", "package"),
    [
        ("postgresql+psycopg2://user:hushhush@127.0.0.1/db", "psycopg2"),
        ("mysql://user:hushhush@127.0.0.1/db", "MySQLdb"),
    ],
)
def test_a_missing_driver_is_reported(uri: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # also where it is installed
    line = refusal(uri)
    assert f"needs the Python package {package}, which is not installed; pip install {package}" in line
    assert line.startswith(f"{uri.partition('://')[0]}://***@127.0.0.1/db: ")
    assert "hushhush" not in line


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("sqlite:///FOLDER", "sqlite:///FOLDER: is a folder; give a file in it, such as sqlite:///FOLDER/mlflow.db"),
        ("sqlite:///FOLDER/none/m.db", "the folder FOLDER/none does not exist; create it"),
        ("sqlite:////proc/x.db", "/proc: cannot be written"),
        *((f"sqlite{end}", "write sqlite:///FILE, with three slashes") for end in ("://", ":m.db")),
        (
            "postgre://host/db",
            "has the unknown scheme 'postgre'; use one of sqlite:///FILE, postgresql://, mysql://, mssql://",
        ),
        ("http://host:port", "is not a valid address ("),
    ],
)
def test_an_invalid_address_is_refused(uri: str, line: str, tmp_path: Path) -> None:
    assert line.replace("FOLDER", str(tmp_path)) in refusal(uri.replace("FOLDER", str(tmp_path)))


def test_another_file_is_no_database_and_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("dear diary, today I trained")
    assert "is not an SQLite database; give another file" in refusal(f"sqlite:///{file}")
    assert file.read_text() == "dear diary, today I trained"


def test_a_stopped_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    closed_port = free_port()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    line = refusal(f"http://user:hushhush@127.0.0.1:{closed_port}")
    assert f"MLflow does not answer (Connection refused at 127.0.0.1:{closed_port}); start the server, or" in line
    assert "hushhush" not in line


def test_a_server_behind_a_proxy_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    check_uri(f"http://tracking.example:{free_port()}")


def test_an_existing_and_a_new_database_are_accepted(tmp_path: Path) -> None:
    check_uri(f"sqlite:///{tmp_path}/new.db")
    (tmp_path / "empty.db").touch()
    for uri in (f"sqlite:///{tmp_path}/empty.db", "databricks", "file:///tmp/mlruns"):
        check_uri(uri)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]
