"""Append-only log of all paid answers. An answer is on disk before the job uses it.

An answer is written as soon as it arrives, so that it survives a kill of the process. It is synced before it is
counted, so that it survives a power failure. Lines that arrive during a sync share the next sync, so the latency of
the disk does not limit the rate.

A line is the CRC-32 of the rest, a space, and one JSON object: the key of the request, the job, the answer, the
tokens. A line that a kill cut short was never counted. It is removed when the log is opened. A line with a wrong
checksum is skipped, and its request is sent again.
"""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from raytriever.errors import StorageError, setting
from raytriever.reading.structured import parse_json
from raytriever.store.commit import lock_errors
from raytriever.store.disk import disk_errors, fsync
from raytriever.store.lock import acquire

FILE = "answers.log"
Entry = dict[str, Any]
_KEY_BYTES = 32  # of a SHA-256


class _StoredEntry(TypedDict):
    """Fields of an entry that are read, see `requests`."""

    key: str
    job: str
    llm: str
    content: str
    finish: str
    bytes: int
    read: int
    written: int
    guessed: bool


class AnswerLog:
    """Answer log in a folder. One process at a time holds it; `report` receives a line that names another one."""

    def __init__(self, folder: Path, wait: bool = False, report: Callable[[str], None] | None = None) -> None:
        self.path = folder / FILE
        self.damaged = self._end = 0
        self._file = -1
        self._positions: dict[bytes, tuple[int, int]] = {}
        self._unsynced: list[tuple[bytes, int, int, asyncio.Future[None]]] = []
        self._syncing: asyncio.Task[None] | None = None
        with lock_errors(folder):
            remedy = f"wait for it with {setting('wait', True)}, or give another folder with {setting('answers')}"
            self._lock = acquire(folder, wait=wait, report=report, remedy=remedy)
        try:
            with disk_errors(folder):
                self._open(folder)
        except BaseException:
            self._lock.release()
            raise

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._positions

    def get(self, key: str) -> Entry | None:
        """Return the entry of a request, None if the log has no answer."""
        position = self._positions.get(bytes.fromhex(key))
        if position is None:
            return None
        entry = _parse(os.pread(self._file, position[1], position[0]))
        if entry is None:
            raise StorageError("was changed while it was read", str(self.path), "run the same command again")
        return entry

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in the order in which they arrived."""
        for key in list(self._positions):
            entry = self.get(key.hex())
            if entry is not None:
                yield entry

    async def put(self, key: str, entry: Entry) -> None:
        """Store an answer, and return when it is on disk. Raise `StorageError` if it cannot be written."""
        text = json.dumps({"key": key, **entry}).encode()
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        start = self._append(line)
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsynced.append((bytes.fromhex(key), start, len(line), synced))
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.create_task(self._sync())
        await synced

    def close(self) -> None:
        """Sync the log to disk, and release it."""
        try:
            with disk_errors(self.path):
                os.fsync(self._file)
        finally:
            os.close(self._file)
            self._lock.release()

    def _append(self, line: bytes) -> int:
        """Write a whole line, which then survives a kill of this process. Return its offset in bytes."""
        start, done = self._end, 0
        with disk_errors(self.path):
            try:
                while done < len(line):
                    done += os.pwrite(self._file, line[done:], start + done)
            except OSError:
                os.ftruncate(self._file, start)
                raise
        self._end = start + len(line)
        return start

    async def _sync(self) -> None:
        """Sync until no unsynced line is left."""
        while self._unsynced:
            batch, self._unsynced = self._unsynced, []
            failure = None
            try:
                await asyncio.to_thread(os.fsync, self._file)
            except OSError as error:
                failure = error
            for key, start, length, synced in batch:
                if failure is None:
                    self._positions[key] = (start, length)
                if synced.done():
                    continue
                if failure is None:
                    synced.set_result(None)
                else:
                    synced.set_exception(StorageError(f"cannot be written ({failure.strerror})", str(self.path)))

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fsync(folder)
            self._end = self._read()
            os.ftruncate(self._file, self._end)
        except BaseException:
            os.close(self._file)
            raise

    def _read(self) -> int:
        """Read the position of each entry. Return the offset at which the last whole line ends."""
        end = 0
        with open(self.path, "rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                entry = _parse(line)
                if entry is None:
                    self.damaged += 1
                else:
                    self._positions[bytes.fromhex(entry["key"])] = (end, len(line))
                end += len(line)
        return end


def _parse(line: bytes) -> Entry | None:
    """Return the entry of a line, None if the line is damaged."""
    text = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(text):
        return None
    try:
        entry = parse_json(text, FILE, _StoredEntry, "ask again")
        return dict(entry) if len(bytes.fromhex(entry["key"])) == _KEY_BYTES else None
    except (StorageError, ValueError):
        return None
