"""Store of paid embeddings. Rows on disk are found by the hash of the text, and are never removed.

A folder belongs to one model of one service. A row of `rows.bin` holds the hash of a text, its number of tokens and
bytes, and the checksum of its embedding. The embedding is in the same row of `embeddings.bin`, and reaches the disk
first. So a row that is cut short (by a kill) or has a wrong checksum does not count. Several processes may append.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from jaxtyping import Bool, Float32
from numpy import ndarray

from raytriever.core.errors import disk_errors
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import write_atomically
from raytriever.core.store.disk import fsync

_ROW = np.dtype([("key", "V16"), ("tokens", "<u4"), ("bytes", "<u4"), ("crc", "<u4"), ("", "<u4")])
_ABOUT, _ROWS, _EMBEDDINGS = "about.json", "rows.bin", "embeddings.bin"


class PaidModel(TypedDict):
    """Description of a model: its service, the width of its embeddings, and the length of the first one."""

    base_url: str
    model: str
    width: int
    length: float


class PaidEmbeddings:
    """Paid embeddings in a folder. `about` is None until `begin` was called once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: PaidModel | None = None
        self.tokens = self.bytes = 0  # totals over all rows
        self._row: dict[bytes, int] = {}
        self._crcs, self._tokens = array("L"), array("L")
        self._lock = threading.Lock()
        if (folder / _ABOUT).exists():
            self.about = read_json(folder / _ABOUT, PaidModel, "remove the folder: its texts are encoded again")

    def begin(self, about: PaidModel) -> None:
        """Create the folder."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / _ABOUT, json.dumps(about, indent=1))
        self.about = about

    def find(self, keys: Sequence[bytes]) -> tuple[Float32[ndarray, "texts width"], Bool[ndarray, " texts"], int]:
        """Return the embeddings of texts (0 for missing ones), a mask of those that exist, and their total tokens."""
        assert self.about is not None
        width = self.about["width"]
        embeddings, is_found = np.zeros((len(keys), width), np.float32), np.zeros(len(keys), bool)
        tokens = 0
        with self._lock:
            self._read_rows()
            if not self._row:
                return embeddings, is_found, tokens
            with open(self.folder / _EMBEDDINGS, "rb") as file:
                for number, key in enumerate(keys):
                    row = self._row.get(key)
                    if row is None:
                        continue
                    raw = os.pread(file.fileno(), 4 * width, 4 * width * row)
                    if zlib.crc32(raw) == self._crcs[row]:
                        embeddings[number], is_found[number] = np.frombuffer(raw, "<f4"), True
                        tokens += self._tokens[row]
        return embeddings, is_found, tokens

    def put(
        self,
        keys: Sequence[bytes],
        embeddings: Float32[ndarray, "texts width"],
        tokens: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        """Store the embeddings of texts. Return when they are on disk.

        Args:
            tokens: number of tokens of each text, as counted by the service.
            sizes: bytes of each text.
        """
        assert self.about is not None
        rows = np.zeros(len(keys), _ROW)
        raw = [np.ascontiguousarray(row, "<f4").tobytes() for row in embeddings]
        rows["key"] = np.frombuffer(b"".join(keys), "V16")
        rows["tokens"], rows["bytes"], rows["crc"] = tokens, sizes, [zlib.crc32(row) for row in raw]
        with self._lock, disk_errors(self.folder):
            file = os.open(self.folder / _ROWS, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                count = os.fstat(file).st_size // _ROW.itemsize
                _write(self.folder / _EMBEDDINGS, b"".join(raw), 4 * self.about["width"] * count)
                _write(self.folder / _ROWS, rows.tobytes(), _ROW.itemsize * count)
            finally:
                os.close(file)
            self._read_rows()

    def _read_rows(self) -> None:
        """Read the rows that were appended since the last call."""
        path, known = self.folder / _ROWS, len(self._crcs)
        if not path.exists() or path.stat().st_size < _ROW.itemsize * (known + 1):
            return
        with open(path, "rb") as file:
            file.seek(_ROW.itemsize * known)
            raw = file.read()
        new = np.frombuffer(raw[: len(raw) // _ROW.itemsize * _ROW.itemsize], _ROW)
        keys = new["key"].tobytes()
        self._row.update((keys[16 * number : 16 * number + 16], known + number) for number in range(len(new)))
        self._crcs.extend(new["crc"].tolist())
        self._tokens.extend(new["tokens"].tolist())
        self.tokens += int(new["tokens"].sum())
        self.bytes += int(new["bytes"].sum())


def _write(path: Path, content: bytes, offset: int) -> None:
    is_new = not path.exists()
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        done = 0
        while done < len(content):
            done += os.pwrite(file, content[done:], offset + done)
        os.fsync(file)
    finally:
        os.close(file)
    if is_new:
        fsync(path.parent)
