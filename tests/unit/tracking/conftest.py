"""A real MLflow database."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests of tracking: making its tables takes longer than the tests."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"
