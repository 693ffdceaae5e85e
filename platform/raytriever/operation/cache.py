"""The cache: what it holds, when each entry was last used, and which entries go first when it has to shrink.

Everything in it can be made again, except the answers of language models, which cost money and are never pruned. An
entry is a folder or file right below the cache, or below one of its collections.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytriever.errors import StorageError
from raytriever.locking import LOCK, InUseError, Owner, owner_of
from raytriever.operation.disk_usage import last_use, remove, size_of
from raytriever.reading.structured import read_json
from raytriever.storage import MANIFEST, cache_folder, disk_errors, one_writer

COLLECTIONS = ("datasets", "embeddings")
ANSWERS, LOCKS = "answers", "locks"
# What an entry right below the cache is, by its name or by how its name begins.
_MADE = {
    "pydocs": "the docstrings of this Python (--dataset pydocs)",
    ANSWERS: "answers of language models (annotate); they cost money and are never pruned",
    "digests": "digests of files that were read",
    "compiled": "compiled functions",
    "chunks": "chunk sizes that were found to fit (--grad-cache-chunk)",
    "launch": "logs of raytriever launch",
    "submissions": "uploads of raytriever submit",
}


@dataclass(frozen=True)
class CacheEntry:
    """One entry of the cache.

    Args:
        path: of the folder or file.
        made: what it is and what made it.
        size: in bytes.
        used: when it was last used, in seconds since 1970.
        owner: the process that writes it now, None where there is none.
    """

    path: Path
    made: str
    size: int
    used: float
    owner: Owner | None

    @property
    def may_go(self) -> bool:
        """Whether it may be pruned."""
        return self.owner is None and self.path.name != ANSWERS


def cache_entries() -> list[CacheEntry]:
    """Return all entries of the cache, the least recently used first; raises `StorageError` where it is unreadable."""
    root = cache_folder()
    found = []
    for path in _children(root):
        if path.name in COLLECTIONS:
            found += [_entry(one, path.name) for one in _children(path)]
        elif path.name != LOCKS:
            found.append(_entry(path, ""))
    return sorted((one for one in found if one is not None), key=lambda entry: (entry.used, entry.path))


def to_prune(entries: Iterable[CacheEntry], most: int) -> list[CacheEntry]:
    """Return the least recently used entries whose removal leaves at most `most` bytes, as far as that is possible."""
    entries = list(entries)
    total, chosen = sum(entry.size for entry in entries), []
    for entry in sorted(entries, key=lambda entry: entry.used):
        if total <= most:
            break
        if entry.may_go:
            chosen.append(entry)
            total -= entry.size
    return chosen


def prune(entry: CacheEntry) -> bool:
    """Remove an entry; false where a process has begun to write it.

    Raises:
        StorageError: it may not be removed.
    """
    try:
        with one_writer(entry.path):
            remove(entry.path)
    except InUseError:
        return False
    return True


def _children(folder: Path) -> list[Path]:
    """What is in a folder, without lock files; nothing where there is no such folder."""
    if not folder.is_dir():
        return []
    with disk_errors(folder, reading=True):
        return sorted(path for path in folder.iterdir() if not path.name.endswith(LOCK))


def _entry(path: Path, collection: str) -> CacheEntry | None:
    """An entry; None where another process has just removed it."""
    with suppress(FileNotFoundError), disk_errors(path, reading=True):
        return CacheEntry(path, _made(path, collection), size_of(path), last_use(path), owner_of(path))
    return None


def _made(path: Path, collection: str) -> str:
    """What an entry is."""
    if path.name.startswith("."):
        return "left by a command that was killed"
    meta = _meta(path)
    if collection == "datasets":
        return f"prepared data set {meta.get('name') or path.name}, of {meta.get('source') or 'unknown'}"
    if collection == "embeddings":
        of, by = meta.get("dataset") or "a data set", meta.get("model") or "an encoder"
        return f"{meta.get('side') or 'text'} embeddings of {of} by {by}" + ("" if meta else ", unfinished")
    return next((made for name, made in _MADE.items() if path.name.startswith(name)), "unknown")


def _meta(path: Path) -> dict[str, Any]:
    """What a committed directory says of itself; nothing where it was never finished or is damaged."""
    try:
        meta = read_json(path / MANIFEST, dict[str, Any], "").get("meta")
    except (OSError, StorageError):
        return {}
    return meta if isinstance(meta, dict) else {}
