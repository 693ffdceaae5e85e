"""Check of MLflow's address: a wrong one is reported at once in one line, without its password."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from raytriever.errors import UserError
from raytriever.tracking.mlflow_tracker import check_uri


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
        ("sqlite:///FOLDER", "sqlite:///FOLDER: is a folder; name a file in it, as sqlite:///FOLDER/mlflow.db"),
        ("sqlite:///FOLDER/none/m.db", "the folder FOLDER/none does not exist; create it"),
        ("sqlite:////proc/x.db", "/proc: cannot be written"),
        *((f"sqlite{end}", "write sqlite:///FILE, with three slashes") for end in ("://", ":m.db")),
        (
            "postgre://host/db",
            "has the unknown scheme 'postgre'; use one of sqlite:///FILE, postgresql://, mysql://, mssql://",
        ),
        ("http://host:port", "is no address ("),
    ],
)
def test_an_invalid_address_is_refused(uri: str, line: str, tmp_path: Path) -> None:
    assert line.replace("FOLDER", str(tmp_path)) in refusal(uri.replace("FOLDER", str(tmp_path)))


def test_another_file_is_no_database_and_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("dear diary, today I trained")
    assert "is no SQLite database; name another file" in refusal(f"sqlite:///{file}")
    assert file.read_text() == "dear diary, today I trained"


def test_a_database_that_is_not_writable_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table t (x)")
    connection.close()
    real = Path.open

    def refuse(path: Path, *words: str) -> object:
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *words)

    monkeypatch.setattr(Path, "open", refuse)  # root may write every file
    assert "m.db" in refusal(f"sqlite:///{file}")


def test_a_stopped_server_is_reported(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    line = refusal(f"http://user:hushhush@127.0.0.1:{closed_port}")
    assert f"MLflow does not answer (Connection refused at 127.0.0.1:{closed_port}); start the server, or" in line
    assert "hushhush" not in line


def test_a_server_behind_a_proxy_is_not_checked(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    check_uri(f"http://tracking.example:{closed_port}")


def test_an_existing_and_a_new_database_are_accepted(tmp_path: Path) -> None:
    check_uri(f"sqlite:///{tmp_path}/new.db")
    (tmp_path / "empty.db").touch()
    for uri in (f"sqlite:///{tmp_path}/empty.db", "databricks", "file:///tmp/mlruns"):
        check_uri(uri)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]
