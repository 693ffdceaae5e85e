"""Pieces of an unfinished result. A committed piece is never computed again.

    FOLDER/NAME/manifest.json    written last: the digest of each file of the piece, and the key in its metadata

If a command was killed, the user repeats it. The new command reads the pieces that exist, makes the missing ones,
writes the whole result, and removes the pieces. The key is a digest of everything that determines a piece. A piece that
is damaged or has another key is made again. Attempts at a piece are counted in files, because Ray endlessly repeats a
task whose process dies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raytriever.core.errors import StorageError
from raytriever.core.store.cache import cache_folder, hold, keep_within_bound
from raytriever.core.store.capacity import check_disk
from raytriever.core.store.commit import Manifest, check_names, committed_directory, one_writer, read_manifest, remove
from raytriever.core.terminal import warn

T = TypeVar("T")


@dataclass
class Pieces:
    """Committed pieces of an unfinished result."""

    folder: Path | None  # folder of the pieces, made with the first piece; None to keep no pieces
    # Digest of everything that determines a piece; empty if the name of the folder or piece contains this digest.
    key: str = ""
    # Name of the work, such as "a search", for work that can go on without pieces: if a piece cannot be written, a
    # warning is printed, and no further piece is written. If this is empty, an error is raised.
    optional: str = ""
    # Function that returns the manifest of a piece, or raises `StorageError` if its files are damaged.
    check: Callable[[Path], Manifest] = read_manifest
    durable: bool = True  # whether the pieces survive a crash of the machine; see `committed_directory`

    def read(self, name: str, load: Callable[[Path, dict[str, Any]], T]) -> T | None:
        """Return the result of `load(path, metadata)` for a piece.
        Return None if the piece is missing or damaged, has another key, or if `load` raises `StorageError`."""
        if self.folder is None:
            return None
        path = self.folder / name
        with suppress(StorageError, OSError):
            meta = self.check(path)["meta"]
            if meta.get("key", "") == self.key:
                return load(path, meta)
        return None

    def write(
        self, name: str, save: Callable[[Path], object], meta: dict[str, Any] | None = None, size: int = 0
    ) -> None:
        """Commit a piece. It replaces an earlier piece with the same name. Raise `StorageError` if the piece cannot be
        written, and `optional` is empty.

        Args:
            save: function that writes the files of the piece into a directory.
            meta: metadata of the piece. It is read after `save`, so `save` may add to it.
            size: number of bytes that must be free on the disk.
        """
        if self.folder is None:
            return
        meta = {} if meta is None else meta
        if self.key:
            meta["key"] = self.key
        try:
            if size:
                check_disk(self.folder, size, f"the pieces of {self.optional}")
            with committed_directory(self.folder / name, meta, replace=True, durable=self.durable) as path:
                save(path)
        except StorageError as error:
            if not self.optional:
                raise
            warn(f"if {self.optional} is stopped, it starts over, because its pieces cannot be written: {error}")
            self.folder = None

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names of the pieces that are missing or damaged."""
        return [name for name in names if self.read(name, lambda path, meta: True) is None]

    def remove(self) -> None:
        """Remove all pieces. Call this when the result is complete."""
        if self.folder is not None:
            remove(self.folder)


def folder_of_blocks(decides: Sequence[Any], holder: object) -> Path:
    """Make a folder in the cache for the finished blocks of an unfinished mining or scoring.

    Args:
        decides: JSON values that determine the blocks. The name of the folder contains their digest.
        holder: the folder is marked as in use while this object exists.
    """
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "negatives" / f"{key[:16]}-blocks"
    with suppress(OSError, StorageError):  # if this user may not write to the cache, no blocks are kept
        folder.mkdir(parents=True, exist_ok=True)
        hold(folder, holder)
        keep_within_bound(folder)
    return folder


def make_once(entry: Path, make: Callable[[], object], check: Callable[[Path], object] = check_names) -> Path:
    """Return an entry of the cache. If it is missing or damaged, one process at a time makes it with `make`. `check`
    raises `StorageError` for a damaged entry; by default names and sizes of the files are compared."""

    def damage() -> str | None:
        try:
            check(entry)
        except StorageError as error:  # return only its text: its traceback would keep the callers' tensors
            return f"{error.where}: {error.what}"
        return None

    if damage() is not None:
        with one_writer(entry, wait=True, log=warn):
            if (reason := damage()) is not None:  # no other command has made it while this one waited
                if entry.exists():
                    warn(f"{reason}; making it again")
                make()
                keep_within_bound(entry)
    return entry


class Attempts:
    """Context manager that counts the attempts of this process at the pieces of a job.

    A process that dies leaves the files of the pieces that it had begun. An exception in the block removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: set[str] = set()

    def begin(self, name: str) -> int:
        """Count an attempt at a piece, and return the number of processes that died in earlier attempts."""
        file = self._folder / f"{name}.begun"
        deaths = 0
        with suppress(OSError, ValueError):
            deaths = int(file.read_text())
        self._begun.add(name)
        # No fsync is needed: a process dies, not the machine. A rename is needed: the process may die during the write.
        temporary = file.with_suffix(".aside")
        temporary.write_text(str(deaths + 1))
        temporary.replace(file)
        return deaths

    def end(self, name: str) -> None:
        """Forget the attempts at a piece, because it is done."""
        self._begun.discard(name)
        (self._folder / f"{name}.begun").unlink(missing_ok=True)

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._begun]:
            self.end(name)
