"""Size limits of the cache, marks of entries in use, and paths of results outside the cache.

Each collection of the cache has a maximum size. When an entry is added, the least recently used other entries are
removed until the collection is small enough. An entry that a process uses is never removed: `hold` takes a shared
lock on its folder until the process ends. If folders cannot be locked, `hold` protects an entry for a day.

`locations/` has the paths of embeddings that a command wrote outside the cache. Later commands reuse the embeddings
while the inputs are unchanged."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

from raytriever.core.errors import StorageError
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.commit import one_writer, write_atomically
from raytriever.core.store.disk import files_below
from raytriever.core.store.lock import InUseError, owner_of
from raytriever.core.store.remote_folders import copy_of
from raytriever.core.terminal import warn

# Maximum size of each collection in bytes. `pydocs` is the limit of all folders whose name begins with `pydocs`.
BOUNDS = {"bm25": 20 * 10**9, "datasets": 50 * 10**9, "embeddings": 4 * 2**30, "merged": 20 * 10**9}
BOUNDS |= {"negatives": 10 * 10**9, "pydocs": 10**9, "sources": 10 * 10**9, "vectors": 20 * 10**9}
_DAY = 24 * 3600.0
_LOCATIONS = "locations"


def cache_folder() -> Path:
    """Return the folder of the cache: `RAYTRIEVER_CACHE` (if it is a URI, its local copy), or `~/.cache/raytriever`. If
    this user may not write to a shared cache, it is `~/.cache/raytriever` too, and one line says so."""
    private = os.path.expanduser("~/.cache/raytriever")
    named = os.environ.get("RAYTRIEVER_CACHE")
    return Path(_usable_cache(os.path.expanduser(copy_of(named)), private) if named else private)


@cache
def _usable_cache(folder: str, private: str) -> str:
    """Return the first folder if this user may write to it and to the collections in it, else the second."""
    collections = []
    with suppress(OSError):
        collections = [entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    forbidden = [path for path in (folder, *collections) if os.path.isdir(path) and not os.access(path, os.W_OK)]
    if not forbidden or folder == private:
        return folder
    warn(
        f"RAYTRIEVER_CACHE={folder}: you may not write to {forbidden[0]}; using {private}. To share a cache, give its "
        "folders to a group: chgrp -R GROUP, chmod -R g+ws"
    )
    return private


def hold(path: Path, holder: object) -> None:
    """Mark an entry of the cache as used now, and as in use while `holder` exists; other paths are ignored."""
    if not os.path.realpath(path).startswith(os.path.realpath(cache_folder()) + os.sep):
        return
    with suppress(OSError):  # this user may not be allowed to write to the cache
        os.utime(path)
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(holder, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only for the short `is_held` of another process


def is_held(path: Path) -> bool:
    """Return True if a process uses the entry (see `hold`)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # this file system cannot lock folders
        return time.time() - os.fstat(descriptor).st_mtime < _DAY
    finally:
        os.close(descriptor)
    return False


def remove_entry(path: Path) -> bool:
    """Remove an entry, unless a process is writing or using it. Return whether the entry was removed."""
    if owner_of(path) is not None:
        return False
    try:
        with one_writer(path):
            if is_held(path):
                return False
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except InUseError:
        return False
    return True


def keep_within_bound(entry: Path) -> None:
    """Remove the least recently used entries of the new entry's collection until its size is within the limit. The
    entry is a directory in the folder of the collection, or in a subfolder of it."""
    entry = entry.parent if entry.parent.parent.name in BOUNDS else entry
    collection = entry.parent.name if entry.parent.name in BOUNDS else entry.name.partition("-")[0]
    siblings = entry.parent.iterdir() if entry.parent.name in BOUNDS else entry.parent.glob(f"{collection}*")
    entries = {}
    for path in siblings:
        with suppress(FileNotFoundError):
            if path.is_dir() and path != entry:
                entries[path] = path.stat().st_mtime
    total = _size(entry)
    for path in sorted(entries, key=lambda path: -entries[path]):
        size = _size(path)
        if total + size <= BOUNDS[collection] or not remove_entry(path):
            total += size


def _size(path: Path) -> int:
    total = 0
    for file in files_below(path):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def record_location(path: Path) -> None:
    """Record in the cache the path of a directory that a command wrote outside the cache."""
    where = os.path.realpath(path)
    name = hashlib.sha256(where.encode()).hexdigest()[:24]
    with suppress(StorageError):  # without the record, later commands compute the embeddings again
        write_atomically(cache_folder() / _LOCATIONS / f"{name}.json", json.dumps({"path": where}))


def recorded_locations() -> list[Path]:
    """Return the recorded directories. Records of directories that no longer exist are removed."""
    paths = []
    for file in (cache_folder() / _LOCATIONS).glob("*.json"):
        with suppress(OSError, StorageError, KeyError):
            path = Path(read_json(file, dict[str, str], "remove it")["path"])
            if path.is_dir():
                paths.append(path)
            else:
                file.unlink()
    return paths
