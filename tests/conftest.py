"""What tests share: the data packs, wherever this machine keeps them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def data_packs() -> Path:
    """The folder of the data packs; tests that use it carry the `data` marker."""
    folder = (REPOSITORY / os.environ.get("RAYTRIEVER_DATA", "../shared/data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no data packs at {folder}: name their folder with RAYTRIEVER_DATA")
    return folder
