"""A cache of its own, and a working directory in which examples may write."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def api_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of the API share, so that each text is encoded once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def workplace(api_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(api_cache))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "workplace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
