"""Every answer that was paid for, in a file that only grows: an answer is on disk before anything follows from it.

An answer that has arrived is written before anything else is done, so that a kill of the process does not take it,
and synced before it is counted, so that a cut of the power does not. Lines that come while others are being synced
share the next sync: a disk's latency is no bound on the rate.

A line is the CRC-32 of what follows, a blank, and one JSON object: the key of the request, the job it was asked for,
what was answered, its tokens. A line that a kill cut short was never counted; it is cut off when the log is opened. A
line whose sum is wrong is passed over, and its request is asked again.
"""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from raytriever.errors import StorageError
from raytriever.locking import acquire
from raytriever.reading.structured import parse_json
from raytriever.storage import disk_errors, fsync, lock_errors

FILE = "answers.log"
Entry = dict[str, Any]
_KEY_BYTES = 32  # of a SHA-256


class _Kept(TypedDict):
    """The fields of an entry that is read, see `asking`."""

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
    """The log in a folder, held by one process at a time.

    Args:
        folder: made if it is not there.
        wait: whether to wait for another process that holds it.
        say: is called with a line that names the other command.

    Raises:
        InUseError: another process holds it, and `wait` is false.
        StorageError: it cannot be written.
    """

    def __init__(self, folder: Path, wait: bool = False, say: Callable[[str], None] | None = None) -> None:
        self.path = folder / FILE
        self.damaged = self._end = 0
        self._file = -1
        self._places: dict[bytes, tuple[int, int]] = {}
        self._unsynced: list[tuple[bytes, int, int, asyncio.Future[None]]] = []
        self._syncing: asyncio.Task[None] | None = None
        with lock_errors(folder):
            remedy = "wait for it with --wait, or give other --answers"
            self._lock = acquire(folder, wait=wait, report=say, remedy=remedy)
        try:
            with disk_errors(folder):
                self._open(folder)
        except BaseException:
            self._lock.release()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._places

    def get(self, key: str) -> Entry | None:
        """The entry of a request, None where it was not answered yet."""
        place = self._places.get(bytes.fromhex(key))
        if place is None:
            return None
        entry = _parsed(os.pread(self._file, place[1], place[0]))
        if entry is None:
            raise StorageError("was changed while it was read", str(self.path), "give the same command again")
        return entry

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order of their answers."""
        for key in list(self._places):
            entry = self.get(key.hex())
            if entry is not None:
                yield entry

    async def put(self, key: str, entry: Entry) -> None:
        """Keep an answer; comes back when it is on disk. Raises `StorageError` if it cannot be written."""
        line = _line({"key": key, **entry})
        start = self._append(line)
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsynced.append((bytes.fromhex(key), start, len(line), synced))
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.create_task(self._sync())
        await synced

    def close(self) -> None:
        """Make everything durable, and let go of the log."""
        try:
            with disk_errors(self.path):
                os.fsync(self._file)
        finally:
            os.close(self._file)
            self._lock.release()

    def _append(self, line: bytes) -> int:
        """Write a line, at once and whole: from here on no kill of this process takes it. Answers where it stands."""
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
        """Make durable what was written, again and again until nothing new is there."""
        while self._unsynced:
            batch, self._unsynced = self._unsynced, []
            failure = None
            try:
                await asyncio.to_thread(os.fsync, self._file)
            except OSError as error:
                failure = error
            for key, start, length, synced in batch:
                if failure is None:
                    self._places[key] = (start, length)
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
        """Learn where each entry stands; answers where the last whole line ends."""
        end = 0
        with open(self.path, "rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                entry = _parsed(line)
                if entry is None:
                    self.damaged += 1
                else:
                    self._places[bytes.fromhex(entry["key"])] = (end, len(line))
                end += len(line)
        return end


def _line(entry: Entry) -> bytes:
    text = json.dumps(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> Entry | None:
    """The entry of a line; None if it is not what was written."""
    text = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(text):
        return None
    try:
        entry = parse_json(text, FILE, _Kept, "ask again")
        return dict(entry) if len(bytes.fromhex(entry["key"])) == _KEY_BYTES else None
    except (StorageError, ValueError):
        return None
