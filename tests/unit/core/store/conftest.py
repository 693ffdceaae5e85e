"""Machines of which each is a folder of copies of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from object_store import ObjectStore

from raytriever.core.store import object_stores


@pytest.fixture
def machine(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Continue on a machine of this name, with copies of its own."""
    server.use(monkeypatch)
    monkeypatch.setattr(object_stores, "_answered", set())

    def move(name: str) -> None:
        monkeypatch.setenv(object_stores.COPIES, str(tmp_path / name))

    move("one")
    return move


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> str:
    return f"s3://bucket/{request.node.name.partition('[')[0]}/mine"
