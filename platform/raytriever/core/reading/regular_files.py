"""Functions that open regular files only, because reading a pipe, a socket or a device could take forever."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from raytriever.core.errors import StorageError


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file for reading. Never wait, for example for the writer of a pipe. Raise `OSError` if the path
    cannot be opened, or is a folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise irregular(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise irregular(path)


def check_regular(path: Path | str) -> None:
    """Raise the errors of `open_regular` for a file that a library will open by its path."""
    open_regular(path).close()


def irregular(path: Path | str) -> StorageError:
    """Return the error of a path that is neither a regular file nor a folder."""
    return StorageError("is a pipe, a socket or a device", str(path), "give a regular file")
