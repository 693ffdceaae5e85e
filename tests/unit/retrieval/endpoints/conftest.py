"""A service of the test's own, and an empty folder without a key in the environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import Served, services


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a service; flags of `llm_server.py` as keywords."""
    with services(tmp_path) as start:
        yield start


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with no key and no proxy in the environment."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name in ("OPENAI_API_KEY", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def letters(tiny_dataset: Path, tmp_path: Path) -> Path:
    """Copy of the tiny data set: 160 documents and queries."""
    return Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))
