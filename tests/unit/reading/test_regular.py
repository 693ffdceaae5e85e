"""What is no regular file is refused at once, and never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from raytriever.data.sources import Source, open_raw, open_stream
from raytriever.errors import StorageError
from raytriever.paths import DATASET, FILE, FOLDER, NEGATIVES, SETTINGS, PathKind
from raytriever.reading.regular import check_regular, open_regular
from raytriever.reading.structured import read_json, read_yaml
from raytriever.store.commit import sha256_of

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


@pytest.fixture(params=["pipe", "pipe.jsonl.gz", "socket", "device"])
def irregular(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # an address of a socket has at most 107 bytes
    if request.param == "device":
        return Path("/dev/zero")
    if request.param == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("socket")
    else:
        os.mkfifo(request.param)
    return tmp_path / request.param


@pytest.mark.timeout(20)
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_at_once(read, irregular: Path) -> None:
    with pytest.raises(StorageError, match=MESSAGE):
        read(irregular)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", [FILE, FOLDER, DATASET, SETTINGS, NEGATIVES])
def test_a_flag_names_no_pipe(kind: PathKind, irregular: Path) -> None:
    with pytest.raises(StorageError, match=MESSAGE):
        kind.check(str(irregular), "flag")


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
