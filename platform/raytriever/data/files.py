"""Files by path or URI, as bytes. A `where` alone is enough to open one, in whatever process."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote

from raytriever.errors import DataError, UserError
from raytriever.masking import refuse_secrets
from raytriever.reading.regular import check_regular, open_regular
from raytriever.storage import disk_errors

HUB = "hf://"
LOCAL = "file://"
_REACH = "check the address, the network and your credentials"


class Listed(NamedTuple):
    """One file of a listing: its path within, its whole URI, its size in bytes, when it was changed (0: unknown)."""

    path: str
    where: str
    size: int
    modified_ns: int


def is_uri(name: str) -> bool:
    """Whether a name is a URI of another place than this machine's disk."""
    return "://" in name and not name.startswith(LOCAL)


def open_raw(where: str) -> Any:
    """The raw bytes of a file, as a `pyarrow.NativeFile` that can seek; raises `DataError` if it cannot be reached."""
    from pyarrow.fs import LocalFileSystem

    with _reaching(where), disk_errors(where, reading=True):
        if is_uri(where):
            file_system, path = _file_system(where)
            return file_system.open_input_file(path)
        check_regular(where.removeprefix(LOCAL))
        return LocalFileSystem().open_input_file(where.removeprefix(LOCAL))


def open_stream(where: str) -> BinaryIO:
    """The bytes of a file from its beginning, unpacked where its name ends in `.gz`.

    Reads of a packed stream raise what `gzip` does; `reading` tells it in one line.
    """
    packed = (where.split("?")[0] if is_uri(where) else where).endswith(".gz")
    if is_uri(where):
        # pyarrow's file as an object of `io`, which `gzip` and readers by line expect.
        raw = io.BufferedReader(open_raw(where), 1 << 20)
        return cast(BinaryIO, gzip.open(raw) if packed else raw)
    with disk_errors(where, reading=True), _reaching(where):
        path = where.removeprefix(LOCAL)
        check_regular(path)
        return cast(BinaryIO, gzip.open(path) if packed else open_regular(path))


@contextmanager
def reading(where: str, row: list[int]) -> Iterator[None]:
    """Tell what stops the reading of a file as a `DataError` naming the last row read, `row[0]`: a gzip that is cut
    off, or none at all; a store that is reached no more."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"the gzip is broken after row {row[0]} ({error})", where, "copy or compress it again"
        ) from error
    except UserError:
        raise
    except Exception as error:
        if not is_uri(where):
            raise
        raise DataError(f"cannot be read after row {row[0]} ({_told(error)})", where, _REACH) from error


def list_remote(uri: str) -> tuple[str, list[Listed]]:
    """Every file under a URI, or the one file it names.

    Returns:
        The URI itself, pinned to a revision where the store has such, and the files.

    Raises:
        DataError: the store is unknown or unreachable, or has nothing there.
    """
    from pyarrow.fs import FileSelector, FileType

    if uri.startswith(HUB):
        from raytriever.data.hub import pinned

        uri = pinned(uri)
    root, _, query = uri.partition("?")
    root, query = root.rstrip("/"), f"?{query}" if query else ""
    with _reaching(uri):
        file_system, path = _file_system(uri)
        found = file_system.get_file_info(path)
        infos = [found] if found.type == FileType.File else []
        if found.type == FileType.Directory:
            infos = file_system.get_file_info(FileSelector(path, recursive=True))
    if found.type == FileType.NotFound:
        raise DataError("no such file or folder", f"--dataset {uri}", "check its spelling, and what you may read")
    listed = []
    for info in infos:
        if info.type == FileType.File:
            below = info.path[len(path) :].strip("/")
            escaped = below if uri.startswith(HUB) else quote(below)
            where = f"{root}/{escaped}" if below else root
            listed.append(Listed(below or info.base_name, where + query, int(info.size or 0), int(info.mtime_ns or 0)))
    return root + query, listed


def _file_system(uri: str) -> tuple[Any, str]:
    """The pyarrow file system of a URI, and the path in it."""
    refuse_secrets(uri, "--dataset")
    if uri.startswith(HUB):
        from raytriever.data.hub import hub_file_system

        return hub_file_system(), uri.removeprefix(HUB).rstrip("/")
    from pyarrow.fs import FileSystem

    return cast(tuple[Any, str], FileSystem.from_uri(uri))


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    """Tell what a store refuses as one `DataError` line; stores answer through several libraries, each with errors of
    its own."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise DataError("no such file", where, "check its spelling, and that it was not removed") from error
    except Exception as error:
        if not is_uri(where):
            raise
        raise DataError(f"cannot be reached ({_told(error)})", where, _REACH) from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
