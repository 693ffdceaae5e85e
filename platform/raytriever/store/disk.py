"""The disk: its errors in one line each, folders that a group shares, and what is below a folder."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from raytriever.errors import StorageError
from raytriever.store import objects

ASIDE = ".aside-"  # in the names of what is not committed yet
_FINAL = re.compile(rf"(?<=/)\.([^/]+){ASIDE}[0-9a-f]+")  # the name that a hidden sibling will have
# Message and remedy of system errors of writing.
_WRITING = {
    errno.ENOSPC: ("no space left on the disk", "free some space or write to another disk"),
    errno.EDQUOT: ("the disk quota is used up", "free some space or write to another disk"),
    errno.EACCES: ("permission denied", "give a path you may write to"),
    errno.EPERM: ("not permitted", "give a path you may write to"),
    errno.EROFS: ("the file system is read-only", "give a path you may write to"),
    errno.EEXIST: ("a file is in the way", "give a path whose parents are directories"),
    errno.ENOTDIR: ("a part of the path is a file", "give a path whose parents are directories"),
    errno.ENAMETOOLONG: ("the name is too long", "give a shorter name"),
    errno.ELOOP: ("symbolic links lead in a circle", "remove the link or give another path"),
    errno.EISDIR: ("a folder is in the way", "give the path of a file"),
    errno.EFBIG: ("the file would be larger than allowed", "raise the limit (`ulimit -f`) or write to another disk"),
    errno.EMFILE: ("too many open files", "raise the limit (`ulimit -n`)"),
    errno.ENFILE: ("too many open files on this machine", "raise the limit (`sysctl fs.file-max`)"),
    errno.EIO: ("the disk fails to read or write", "check the disk, and use another one"),
}
# Message and remedy of system errors of reading, where "a path you may write to" would not help.
_READABLE = "make it readable for this user (chmod, chown), or give another path"
_READING = _WRITING | {
    errno.EACCES: ("permission denied", _READABLE),
    errno.EPERM: ("not permitted", _READABLE),
    errno.ENOTDIR: ("a part of the path is a file", "check the path"),
}


@contextmanager
def disk_errors(path: Path | str, *, reading: bool = False) -> Iterator[None]:
    """Raise a full disk or a missing permission as one `StorageError` line; other errors pass.

    Args:
        path: named where the error itself names no file.
        reading: whether the block only reads. The remedy then is to make the file readable, not to write elsewhere.
    """
    try:
        yield
    except Exception as error:
        reason = (_READING if reading else _WRITING).get(_errno(error))
        if reason is None:
            raise
        named = str(getattr(error, "filename", None) or path)
        where = _FINAL.sub(r"\1", str(path) if ASIDE in named else named)
        raise StorageError(reason[0], where, remedy=reason[1]) from error


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder like `os.walk`, but raise an error for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    with disk_errors(folder, reading=True):
        yield from os.walk(folder, onerror=refuse)


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and in those below it, in order; links to folders are not followed."""
    paths = sorted(Path(here, name) for here, _, names in walk(folder) for name in names)
    return [path for path in paths if path.is_file()]


def has_content(folder: Path) -> bool:
    """Return whether a folder exists and is not empty."""
    with disk_errors(folder, reading=True):
        return folder.is_dir() and any(folder.iterdir())


def check_writable(path: Path | str) -> None:
    """Raise `StorageError` unless a file can be written under `path`, which need not exist; leaves no file."""
    objects.check_writable(path)
    folder = Path(os.path.abspath(path))
    with disk_errors(path):
        while not _exists(folder) and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise StorageError("a part of the path is a file", str(path), _WRITING[errno.ENOTDIR][1])
        try:
            with TemporaryFile(dir=folder) as stream:
                stream.write(bytes(4096))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            if error.errno in _WRITING:
                error.filename = None
                raise
            raise StorageError(f"cannot be written ({error.strerror})", str(path), "give another path") from error


def _exists(path: Path) -> bool:
    """Return True if a path exists, like `Path.exists`, but raise an error for links in a circle."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def _errno(error: Exception) -> int:
    """Return the number of a system error, also if a library reports it in words only; 0 for any other error."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, OSError) and re.search(r"\d+ requested and \d+ written", str(error)):
        return errno.ENOSPC  # numpy, of a write cut short
    rust = re.search(r"\(os error (\d+)\)", str(error))  # safetensors, tokenizers
    return int(rust[1]) if rust and not isinstance(error, StorageError) else 0


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, which survive a crash of the machine. Below a folder that a group may write, the
    group may write them as well."""
    missing = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        fsync(one.parent)
        above = one.parent.stat().st_mode
        if above & stat.S_ISGID and above & stat.S_IWGRP:
            with suppress(PermissionError):  # another user has made it meanwhile
                one.chmod(stat.S_IMODE(one.stat().st_mode) | stat.S_IWGRP)


_WORKING_DIRECTORY, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <fcntl.h> and <linux/fs.h>


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories in one step of Linux. Return False if it cannot, as on some file systems.

    Raises:
        OSError: a directory is missing or may not be renamed.
    """
    rename: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    arguments = _WORKING_DIRECTORY, os.fsencode(one), _WORKING_DIRECTORY, os.fsencode(other), _EXCHANGE
    if rename(*arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def fsync(path: Path) -> None:
    """Make the contents of a file, or the names in a folder, survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
