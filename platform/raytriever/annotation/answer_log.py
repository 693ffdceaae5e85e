"""Every answer that was paid for, in a file that only grows: an answer is on disk before anything follows from it.

A line is the CRC-32 of what follows, a blank, and one JSON object: the key of the request, the job it was asked for,
what was answered, its tokens. Lines that come while others are being made durable share the next fsync, so that a
disk's latency is no bound on the rate. A line that a kill cut short was never counted; it is cut off when the log is
opened. A line whose sum is wrong is passed over, and its request is asked again.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raytriever.errors import StorageError
from raytriever.storage import disk_errors

FILE = "answers.log"
Entry = dict[str, Any]


class AnswerLog:
    """The log in a folder, held by one process at a time.

    Args:
        folder: made if it is not there.

    Raises:
        StorageError: another process holds it, or it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.damaged = 0
        self._places: dict[bytes, tuple[int, int]] = {}
        self._waiting: list[tuple[bytes, bytes, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._file)
                raise StorageError(
                    "another run is writing its answers there", str(self.path), "wait for it, or give other --answers"
                ) from error
            _fsync_folder(folder)
            self._end = self._read()
            os.ftruncate(self._file, self._end)

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
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((bytes.fromhex(key), _line({"key": key, **entry}), written))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit())
        await written

    def close(self) -> None:
        """Write what still waits, and let go of the log."""
        try:
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._write([line for _, line, _ in waiting])
        finally:
            os.close(self._file)

    async def _commit(self) -> None:
        while self._waiting:
            lines, self._waiting = self._waiting, []
            start = self._end
            try:
                await asyncio.to_thread(self._write, [line for _, line, _ in lines])
            except Exception as error:
                for _, _, written in lines:
                    if not written.done():
                        written.set_exception(error)
                return
            for key, line, written in lines:
                self._places[key] = (start, len(line))
                start += len(line)
                if not written.done():
                    written.set_result(None)

    def _write(self, lines: list[bytes]) -> None:
        block = b"".join(lines)
        with disk_errors(self.path):
            try:
                done = 0
                while done < len(block):
                    done += os.pwrite(self._file, block[done:], self._end + done)
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, self._end)
                raise
        self._end += len(block)

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
    entry: Entry = json.loads(text)
    return entry


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
