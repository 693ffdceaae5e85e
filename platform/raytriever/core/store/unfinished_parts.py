"""Parts of a result that is not finished: a part that is committed is never made again.

    FOLDER/NAME/manifest.json    written last: the digest of each file of the part, and the key in its metadata

A user repeats a command that was killed. It reads the parts that exist, makes the missing ones, writes the result as a
whole, and removes the parts. The key is a digest of everything that determines the part. A part that is damaged or has
another key counts as missing. Attempts at a part are counted in files, because Ray endlessly repeats a task whose
process dies.
"""

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
class Parts:
    """Committed parts of an unfinished result.

    Args:
        folder: folder of the parts, made with the first one; None to keep none.
        key: digest of everything that determines a part; empty if the folder or the part is named after it.
        optional: name of the work, such as "a search", if it can go on without parts. A part that cannot be written is
            then a warning, and no further part is written. By default it is an error.
        check: compares the files of a part with their digests, raises `StorageError`, and returns the manifest.
        durable: whether the parts survive a crash of the machine; see `committed_directory`.
    """

    folder: Path | None
    key: str = ""
    optional: str = ""
    check: Callable[[Path], Manifest] = read_manifest
    durable: bool = True

    def read(self, name: str, load: Callable[[Path, dict[str, Any]], T]) -> T | None:
        """Return what `load(path, metadata)` returns for a part; `load` raises `StorageError` for wrong contents.
        Return None if the part is missing or damaged, or has another key."""
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
        """Commit a part. It replaces an earlier part of the name. Raise `StorageError` if the part cannot be written,
        and the parts are not optional.

        Args:
            save: writes the files of the part into a directory.
            meta: metadata of the part; read after `save`, which may fill it.
            size: bytes that the disk must have room for.
        """
        if self.folder is None:
            return
        meta = {} if meta is None else meta
        if self.key:
            meta["key"] = self.key
        try:
            if size:
                check_disk(self.folder, size, f"copies of {self.optional} that is not finished")
            with committed_directory(self.folder / name, meta, replace=True, durable=self.durable) as path:
                save(path)
        except StorageError as error:
            if not self.optional:
                raise
            warn(f"if {self.optional} is stopped, it starts again, because its parts cannot be written: {error}")
            self.folder = None

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names of the parts that are missing or damaged."""
        return [name for name in names if self.read(name, lambda path, meta: True) is None]

    def remove(self) -> None:
        """Remove all parts, once the result is complete."""
        if self.folder is not None:
            remove(self.folder)


def folder_of_blocks(decides: Sequence[Any], holder: object) -> Path:
    """Make the folder in the cache of the finished blocks of a mining or a scoring.

    Args:
        decides: JSON values that determine the blocks; the folder is named after their digest.
        holder: the folder is in use while this object exists.
    """
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "negatives" / f"{key[:16]}-blocks"
    with suppress(OSError, StorageError):  # the cache may be writable for other users only; then nothing is kept
        folder.mkdir(parents=True, exist_ok=True)
        hold(folder, holder)
        keep_within_bound(folder)
    return folder


def make_once(entry: Path, make: Callable[[], object], check: Callable[[Path], object] = check_names) -> Path:
    """Return an entry of the cache. If it is missing or damaged, `make` commits it, in one process at a time. `check`
    raises `StorageError` for a damaged entry; by default names and sizes of the files are compared."""

    def damage() -> str | None:
        try:
            check(entry)
        except StorageError as error:  # returned as text: its traceback would keep the callers' tensors
            return f"{error.where}: {error.what}"
        return None

    if damage() is not None:
        with one_writer(entry, wait=True, report=warn):
            if (reason := damage()) is not None:  # unless another command has made it meanwhile
                if entry.exists():
                    warn(f"{reason}; making it again")
                make()
                keep_within_bound(entry)
    return entry


class Attempts:
    """Attempts of this process at pieces, as a context manager.

    A process that dies leaves the files of the pieces that it had begun. An exception is no death: it removes them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: set[str] = set()

    def begin(self, name: str) -> int:
        """Count an attempt at a piece, and return the number of processes that died over it before."""
        file = self._folder / f"{name}.begun"
        deaths = 0
        with suppress(OSError, ValueError):
            deaths = int(file.read_text())
        self._begun.add(name)
        # Without fsync, because processes die, not the machine. Renamed, because a process may die while it writes.
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
