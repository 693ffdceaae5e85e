"""Remembered comparisons of directories with their digests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raytriever.data.digests import check_directory
from raytriever.errors import StorageError
from raytriever.store.commit import committed_directory


def test_a_comparison_is_remembered_without_a_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    with committed_directory(tmp_path / "data") as aside:
        (aside / "values").write_bytes(b"right")
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    file = tmp_path / "data" / "values"
    check_directory(tmp_path / "data")
    assert waits == []

    # The same size and time, so the file is not read again.
    status = file.stat()
    file.write_bytes(b"wrong")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    check_directory(tmp_path / "data")

    # A memo that a crash of the machine has emptied is a comparison that is not remembered.
    [memo] = (tmp_path / "cache" / "digests").iterdir()
    memo.write_bytes(b"")
    with pytest.raises(StorageError, match="changed: its SHA-256"):
        check_directory(tmp_path / "data")
