"""Helpers for the disk: write checks, folders that a group shares, lists of files, fsync."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from raytriever.core.errors import StorageError, disk_errors
from raytriever.core.store import object_stores


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder like `os.walk`, but raise an error for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    yield from os.walk(folder, onerror=refuse)


def files_below(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, in order. Links to folders are not followed."""
    paths = sorted(Path(here, name) for here, _, names in walk(folder) for name in names)
    return [path for path in paths if path.is_file()]


def has_content(folder: Path) -> bool:
    """Return whether a folder exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def check_writable(path: Path | str) -> None:
    """Raise `StorageError` unless a file can be written below `path`, which need not exist. Leave no file there."""
    object_stores.check_writable(path)
    folder = Path(os.path.abspath(path))
    try:
        with disk_errors(path):
            while not _exists(folder) and folder != folder.parent:
                folder = folder.parent
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            try:
                with TemporaryFile(dir=folder) as stream:
                    stream.write(bytes(4096))
                    stream.flush()
                    os.fsync(stream.fileno())
            except OSError as error:
                error.filename = None  # it is a temporary name, which the user does not know
                raise
    except OSError as error:
        raise StorageError(f"cannot be written ({error.strerror})", str(path), "give another path") from error


def _exists(path: Path) -> bool:
    """Return True if a path exists. Unlike `Path.exists`, raise an error for symbolic links that form a loop."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents durably. Return the folders that were missing, the deepest first. If a group may
    write to the existing folder above them, it may also write to the new ones."""
    missing = [parent for parent in (folder, *folder.parents) if not os.path.lexists(parent)]
    above = missing[-1].parent if missing else folder
    if not (_exists(above) and above.is_dir()):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
    folder.mkdir(parents=True, exist_ok=True)
    for parent in reversed(missing):
        fsync(parent.parent)
        mode = parent.parent.stat().st_mode
        if mode & stat.S_ISGID and mode & stat.S_IWGRP:
            with suppress(PermissionError):  # another user has just made it
                parent.chmod(stat.S_IMODE(parent.stat().st_mode) | stat.S_IWGRP)
    return missing


def fsync(path: Path) -> None:
    """Write the contents of a file, or the names in a folder, to the disk, so that they survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
