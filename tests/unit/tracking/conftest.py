"""MLflow database for all tests of tracking, and a server that can be made to fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_server import FaultyServer

from raytriever.tracking import outbox as outbox_module
from raytriever.tracking import outbox as sender_module
from raytriever.tracking.mlflow_tracker import MlflowServer


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one database for all tests, because the creation of its tables takes longer than the tests."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture
def uri(database: Path) -> str:
    return f"sqlite:///{database}"


@pytest.fixture
def server(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowServer:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sender_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender_module, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(outbox_module, "GATHER_SECONDS", 0.0)
    return MlflowServer(uri)


@pytest.fixture
def faulty(server: MlflowServer) -> FaultyServer:
    return FaultyServer(server)
