"""Lease: the right to write one path of an object store, for a process on any host.

    BUCKET/runs/.mine.lock/TOKEN    an object of each process that has the lease or asks for it

1. A process writes its object, and then lists all objects. It has the lease if there is no other. The list has every
   object that was written before. So if two ask at once, one or both see the other, delete their objects and wait.
2. The holder writes its object again every `RENEW_SECONDS`. An object that is `STALE_SECONDS` old belongs to
   a process that has ended, and is removed. Ages are computed from the store's clock, never from clocks of hosts.
3. A holder that was suspended for too long finds its object removed. It commits nothing more (`lock.check_owner`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from raytriever.core.errors import StorageError
from raytriever.core.store import object_stores, remote_folders
from raytriever.core.terminal import warn

RENEW_SECONDS, STALE_SECONDS = 15.0, 90.0  # time between renewals; age at which a lease is treated as abandoned


class Lease:
    """Lease that this process holds until `release`; made by `ask`.

    Args:
        file: path of the lock; the objects below it are the leases.
    """

    def __init__(self, path: Path, file: Path, token: str, record: bytes) -> None:
        self._object, self._record = file / token, record
        remote_folders.pull(path, owned=False)  # although this process holds the lock, the store is newer
        self._changes = remote_folders.Changes(path)
        self._released = threading.Event()
        threading.Thread(target=self._keep, name="lease", daemon=True).start()

    def push_changes(self) -> None:
        """Upload the files of the path that have changed; raises `StorageError`."""
        self._changes.push()

    def release(self) -> None:
        """Upload changed files and delete the object of the lease; raises `StorageError`."""
        self._released.set()
        try:
            if is_held(self._object):
                self.push_changes()
        finally:
            object_stores.delete_object(self._object)

    def _keep(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            try:
                if not is_held(self._object):
                    return  # the lease was lost while this process was suspended; `check_owner` reports it
                object_stores.write_object(self._object, self._record)
                self._changes.push()
            except StorageError as error:
                warn(f"{error}")


def ask(file: Path, token: str, record: bytes, has_ended: Callable[[bytes], bool]) -> bytes | None:
    """Ask once for the lease of a lock. Return None if this process now has it, else the other process's record.
    `has_ended` returns True for the record of a process that is known to have ended."""
    object_stores.write_object(file / token, record)
    other = _other(file, token, has_ended)
    if other is not None:
        object_stores.delete_object(file / token)
    return other


def is_held(lease: Path) -> bool:
    """Return whether the object of a lease exists."""
    return object_stores.read_object(lease) is not None


def _other(file: Path, token: str, has_ended: Callable[[bytes], bool]) -> bytes | None:
    times = object_stores.list_objects(file)
    for name, written in times.items():
        if name == token:
            continue
        record = object_stores.read_object(file / name)
        if record is None:
            continue
        if has_ended(record) or (token in times and times[token] - written > STALE_SECONDS * 1e9):
            with suppress(StorageError):
                object_stores.delete_object(file / name)
            continue
        return record
    return None
