"""A real S3 server, and machines of which each is a folder of copies of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_store import ObjectStore, object_store

from raytriever.store import objects


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def machine(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Continue on a machine of this name, with copies of its own."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    objects._store.cache_clear()
    monkeypatch.setattr(objects, "_answered", set())

    def move(name: str) -> None:
        monkeypatch.setenv(objects.COPIES, str(tmp_path / name))

    move("one")
    return move


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> str:
    return f"s3://bucket/{request.node.name.partition('[')[0]}/mine"
