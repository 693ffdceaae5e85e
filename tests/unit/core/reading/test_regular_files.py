"""What is no regular file is refused at once, and never waited for."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path

import pytest

from raytriever.core.errors import StorageError
from raytriever.core.paths import DATASET, FILE, FOLDER
from raytriever.core.reading.json_and_yaml import read_json, read_yaml
from raytriever.core.reading.regular_files import check_regular, open_regular
from raytriever.core.store.commit import sha256_of
from raytriever.data.data_sources import Source, open_raw, open_stream

MESSAGE = "is a pipe, a socket or a device; give a regular file"
READERS = [
    check_regular,
    open_regular,
    sha256_of,
    lambda path: read_json(path, dict, "x"),
    lambda path: read_yaml(path, "x"),
    lambda path: open_stream(str(path)),
    lambda path: open_raw(str(path)),
    lambda path: Source.open(str(path)),
]
KINDS = [partial(lambda kind, path: kind.check(str(path), "flag"), kind) for kind in (FILE, FOLDER, DATASET)]


@pytest.fixture
def irregular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A pipe, one with the name of a data set, a socket and a device."""
    monkeypatch.chdir(tmp_path)  # an address of a socket has at most 107 bytes
    os.mkfifo("pipe")
    os.mkfifo("pipe.jsonl.gz")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    return [*(tmp_path / name for name in ("pipe", "pipe.jsonl.gz", "socket")), Path("/dev/zero")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", [*READERS, *KINDS])
def test_what_is_no_file_is_refused_at_once(read, irregular: list[Path]) -> None:
    for file in irregular:
        with pytest.raises(StorageError, match=MESSAGE):
            read(file)


def test_a_file_is_read_and_a_folder_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "link"):
        with open_regular(tmp_path / name) as stream:
            assert stream.read() == b"text"
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
