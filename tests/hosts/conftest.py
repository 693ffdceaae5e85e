"""The folder that all hosts see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path, tiny_dataset: Path) -> Path:
    """A folder with a model and data."""
    shared = tmp_path_factory.mktemp("hosts")
    for name, source in (("model", tiny_encoder), ("data", tiny_dataset)):
        subprocess.run(["cp", "-r", source, shared / name], check=True)
    return shared
