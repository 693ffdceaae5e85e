"""An empty working directory, a data set that a test may damage, services, and a disk that fills up."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from services import Served, services


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty working directory of the command, with a cache of its own and no key in the environment."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    for name in ("MLFLOW_TRACKING_URI", "RAYTRIEVER_RUNS", "RAY_ADDRESS", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def letters(tiny_dataset: Path, tmp_path: Path) -> Path:
    """Copy of the tiny data set: 160 documents and queries, 96 + 32 + 32 judgements."""
    return Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a service of chat completions and embeddings; flags of `llm_server.py` as keywords."""
    with services(tmp_path) as start:
        yield start


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real file system of 20 KiB; where none may be mounted, one on which nothing can be made to last."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", str(folder)]
    if shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    yield folder


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    """The same without a byte left."""
    if small_disk.is_mount():
        with (small_disk / "fill").open("wb", buffering=0) as stream, suppress(OSError):
            while stream.write(bytes(4096)):
                pass
    return small_disk
