"""Inventory of the cache: size and last use of each entry, and the choice of entries to prune.

An entry is a folder or a file directly below the cache folder, or directly below one of the cache's collections. The
answers of language models cost money and are never pruned. Every other entry can be created again, and may be pruned
unless a process writes it or has it open."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from raytriever.core.store.cache import BOUNDS, cache_folder, is_held
from raytriever.core.store.commit import MANIFEST
from raytriever.core.store.disk import walk
from raytriever.core.store.lock import LOCK, owner_of
from raytriever.core.store.lock_owner import Owner
from raytriever.core.store.object_stores import address_of, listing

COLLECTIONS = tuple(name for name in BOUNDS if name != "pydocs")
ANSWERS, LOCKS = "answers", "locks"


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the cache. `used_at` is the time of its last use, in seconds since 1970. `owner` is the process that
    is writing it, or None."""

    path: Path
    size: int
    used_at: float
    owner: Owner | None
    is_open: bool = False

    @property
    def is_removable(self) -> bool:
        """True if the entry may be pruned."""
        return self.owner is None and not self.is_open and self.path.name != ANSWERS


def cache_entries() -> list[CacheEntry]:
    """Return all entries of the cache, the least recently used first. Raises `StorageError` if reading fails."""
    root = cache_folder()
    entries: list[CacheEntry | None] = []
    for path in _children(root):
        if path.name in COLLECTIONS:
            entries += map(_entry, _children(path))
        elif path.name != LOCKS:
            entries.append(_entry(path))
    return sorted((entry for entry in entries if entry is not None), key=lambda entry: (entry.used_at, entry.path))


def entries_to_prune(entries: Iterable[CacheEntry], limit: float = inf, before: float = -inf) -> list[CacheEntry]:
    """Return the entries to prune: those last used before the time `before` (seconds since 1970). If the other
    entries have more than `limit` bytes, the least recently used of them are also pruned."""
    entries = list(entries)
    total, chosen = sum(entry.size for entry in entries), []
    for entry in sorted(entries, key=lambda entry: entry.used_at):
        if entry.is_removable and (total > limit or entry.used_at < before):
            chosen.append(entry)
            total -= entry.size
    return chosen


def _children(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.endswith(LOCK))


def _entry(path: Path) -> CacheEntry | None:
    """Return the entry of a path; None if another process has just removed it."""
    with suppress(FileNotFoundError):
        return CacheEntry(path, size_of(path), last_use_time(path), owner_of(path), is_held(path))
    return None


def format_time(seconds: float | None) -> str:
    """Return a time in seconds since 1970 as local date and time; `-` if it is None."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds is not None else "-"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder. Links are not followed.

    For a folder in an object store, its objects are counted, because the copy on this machine has only some of them. A
    file that another process removes during the count is skipped."""
    if address_of(path) and path.is_dir():
        return sum(size for size, _ in listing(path).values())
    return sum(status.st_size for status in _statuses(path))


def last_use_time(path: Path) -> float:
    """Return the time of the last use of an entry, in seconds since 1970.

    This is the latest of the entry's modification time and of the access times of its files. The manifest is ignored,
    because listing the cache reads it. Most file systems update an access time at most once a day (`relatime`)."""
    return max([path.lstat().st_mtime, *(status.st_atime for status in _statuses(path, without=MANIFEST))])


def _statuses(path: Path, without: str = "") -> Iterator[os.stat_result]:
    if path.is_symlink() or not path.is_dir():
        paths: Iterator[Path] = iter([path])
    else:
        paths = (Path(here, name) for here, _, names in walk(path) for name in names if name != without)
    for file in paths:
        try:
            yield file.lstat()
        except FileNotFoundError:
            continue
