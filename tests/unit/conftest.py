"""A disk that fills up, and a port at which nobody listens."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import free_port


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


@pytest.fixture
def closed_port() -> int:
    return free_port()
