"""The folder that all hosts see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, large_encoder: Path, tiny_dataset: Path) -> Path:
    """A folder with data and a model of 5.3 MB, whose checkpoints have shards above `remote.SMALL_BYTES`."""
    shared = tmp_path_factory.mktemp("hosts")
    for name, source in (("model", large_encoder), ("data", tiny_dataset)):
        subprocess.run(["cp", "-r", source, shared / name], check=True)
    return shared
