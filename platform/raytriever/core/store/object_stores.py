"""Requests about one object of a store. A request that gets no answer is retried for minutes.

A path below COPIES names an object, even if there is no copy (`remote_folders`). `pyarrow.fs` reads and writes
the stores. Credentials, region and endpoint come from the usual environment variables."""

from __future__ import annotations

import errno
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from raytriever.core.errors import StorageError, translate_by
from raytriever.core.interruption import check_interrupted
from raytriever.core.terminal import warn

T = TypeVar("T")
_log: Callable[[str], None] = warn
_newest = 0  # value of the function `newest`
COPIES = "RAYTRIEVER_COPIES"  # folder of the local copies; a driver sets it for its workers on other hosts
LOCAL = "file://"
MANIFEST = "manifest.json"
PATIENCE_SECONDS = 300.0  # for how long to retry a store that has answered before
FIRST_SECONDS = 20.0  # for how long to retry a store that has never answered: its address may be wrong
_answered: set[str] = set()  # buckets that have answered this process; "" means that all are trusted (`trust_stores`)
# Messages of stores and pyarrow after which a retry is useless.
_REFUSALS = re.compile(
    r"ACCESS_DENIED|Access Denied|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET|Bucket .* not found|"
    r"Forbidden|Unauthorized|PermissionDenied|status 40[13]|HTTP status 40[13]|credentials|Could not resolve host|"
    r"Could not create a OAuth2 access token",
    re.IGNORECASE,
)
# Errors that the server has sent, for example for a full bucket. They show that the connection works.
_ANSWERS = re.compile(
    r"AWS Error (?!NETWORK_CONNECTION|REQUEST_TIMEOUT|UNKNOWN)|HTTP status (code: )?5\d\d", re.IGNORECASE
)
# Errors of this machine's disk that name no file. It would not help to repeat the request.
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EIO)
_PROBE = b"raytriever"
_REFUSED = "check the name of the bucket, the credentials in the environment, and their permissions"


def log_to(log: Callable[[str], None]) -> None:
    """Set the function that prints lines about stores that do not answer. A worker needs it, having no terminal."""
    global _log
    _log = log


def trust_stores() -> None:
    """Retry for `PATIENCE_SECONDS` already at the first request: the driver of this worker has reached the stores."""
    _answered.add("")


def is_uri(name: str) -> bool:
    """Return True if a name is a URI, except `file://`."""
    return "://" in name and not name.startswith(LOCAL)


def copies_folder() -> Path:
    """Return the folder of the copies: `remote` in the cache, or in the default cache if the cache is a URI."""
    cache = os.environ.get("RAYTRIEVER_CACHE") or "~/.cache/raytriever"
    folder = os.environ.get(COPIES) or os.path.join("~/.cache/raytriever" if is_uri(cache) else cache, "remote")
    return Path(os.path.abspath(os.path.expanduser(folder)))


def address_of(path: Path | str) -> str | None:
    """Return the URI of which a path is the local copy; None for any other path."""
    below = inside(path)
    if below is None or len(below) < 2:
        return None
    scheme, bucket, *parts = below
    bucket, _, query = bucket.partition("?")
    return f"{scheme}://{'/'.join([bucket, *parts])}{f'?{query}' if query else ''}"


def shown(text: str) -> str:
    """Replace each path of a local copy in a text by its URI, which the user knows."""
    folder = f"{copies_folder()}{os.sep}"
    return text if folder not in text else re.sub(re.escape(folder) + r"(\w+)/", r"\1://", text)


translate_by(shown)


# ------------------------------------------------------------------------------------------------------ single objects


def write_object(path: Path, content: bytes) -> None:
    """Write a small object directly to the store. `path` is where its copy would be; no copy is made."""

    def write(store: Any, key: str) -> None:
        with store.open_output_stream(key) as stream:
            stream.write(content)

    ask(path, write)


def read_object(path: Path) -> bytes | None:
    """Read a small object directly from the store, without a copy. Return None if there is no such object."""

    def read(store: Any, key: str) -> bytes | None:
        try:
            with store.open_input_stream(key) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    return ask(path, read)


def list_objects(path: Path) -> dict[str, int]:
    """Return each object below a path with the time when it was last written, in nanoseconds by the store's clock."""
    return {name: modified for name, (_, modified) in listing(path).items()}


def inside(path: Path | str) -> tuple[str, ...] | None:
    """Return the components of a path relative to the folder of the copies; None if the path is not below it."""
    folder = str(copies_folder())
    text = os.path.abspath(path)
    return Path(text[len(folder) + 1 :]).parts if text.startswith(folder + os.sep) else None


def open_file_system(uri: str) -> tuple[Any, str]:
    """Return the pyarrow file system for a URI, and the path in it.

    Raises:
        OSError: raised by pyarrow.
    """
    from pyarrow.fs import FileSystem

    address, _, query = uri.partition("?")
    scheme, options = uri.partition("://")[0], [query] if query else []
    # With this option, writing a small object takes one request instead of three.
    options += ["allow_delayed_open=true"] if scheme == "s3" else []
    # By default, a request retries for 15 minutes without any report, and ignores signals.
    options += ["retry_limit_seconds=10"] if scheme in ("gs", "gcs") and "retry_limit_seconds" not in query else []
    store, path = FileSystem.from_uri(f"{address}{'?' + '&'.join(options) if options else ''}")
    # A file system that is made from a URI retries an S3 server for 100 s. A copy of the object retries for only 12 s.
    return (copy(store) if scheme == "s3" else store), path


@lru_cache(maxsize=16)
def _store(scheme: str, bucket: str) -> tuple[Any, str]:
    name, _, query = bucket.partition("?")
    store, path = open_file_system(f"{scheme}://{name}/?{query}")
    return store, path.rstrip("/")


def ask(path: Path, request: Callable[[Any, str], T]) -> T:
    """Call `request(store, key)` for the object whose copy is `path`. See `patiently` for retries and errors."""
    scheme, bucket, *parts = inside(path) or ()

    def answer() -> T:
        store, root = _store(scheme, bucket)
        return request(store, "/".join([root, *parts]))

    return patiently(answer, f"{scheme}://{bucket.partition('?')[0]}", address_of(path))


def patiently(request: Callable[[], T], uri: str, where: str | None) -> T:
    """Return the result of a request. Repeat the request while the store does not answer. Raise `StorageError` if the
    store refuses, or does not answer for `PATIENCE_SECONDS` (`FIRST_SECONDS` if it has never answered), or if the
    disk of the local copies fails.

    Args:
        uri: the bucket, for messages.
        where: the object, for messages.
    """
    began, pause = time.monotonic(), 0.5
    while True:
        try:
            result = request()
            _answered.add(uri)
            return result
        except FileNotFoundError:
            _answered.add(uri)
            raise
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_DISK):
                what = f"the copies of {uri} cannot be written or read ({error.strerror})"
                remedy = f"free some space there, or set {COPIES} to another folder"
                raise StorageError(what, str(copies_folder()), remedy) from error
            if isinstance(error, ValueError) or _REFUSALS.search(str(error)):
                raise StorageError(f"the store refuses ({reason})", where, _REFUSED) from error
            answers = _ANSWERS.search(str(error))
            is_known = bool(answers or _answered & {uri, ""})
            patience = PATIENCE_SECONDS if is_known else FIRST_SECONDS
            length = f"{patience / 60:g} minutes" if is_known else f"{patience:g} seconds"
            if time.monotonic() - began > patience:
                raise StorageError(
                    f"the store has {'answered with errors' if answers else 'not answered'} for {length} ({reason})",
                    uri,
                    ("free space in it if it is full" if answers else "check the endpoint and the network")
                    + ", then give the same command again"
                    + (": it continues" if is_known else ""),
                ) from error
            if pause == 0.5:
                problem = "answers with an error, as a full store does" if answers else "does not answer"
                _log(f"{uri}: the store {problem} ({reason}); trying again for {length}")
            check_interrupted()
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


class PatientFile(io.RawIOBase):
    """Seekable stream of an object's bytes. A read is repeated while the store does not answer (see `patiently`)."""

    def __init__(self, store: Any, path: str, where: str) -> None:
        self._file, self._where, self._place = store.open_input_file(path), where, 0
        scheme, _, rest = where.partition("://")
        self._bucket = f"{scheme}://{rest.partition('/')[0]}"

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size()}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read bytes, and return their number; raises `StorageError`."""
        read = patiently(lambda: self._file.read_at(len(buffer), self._place), self._bucket, self._where)
        buffer[: len(read)] = read
        self._place += len(read)
        return len(read)

    def close(self) -> None:
        """Close the object."""
        self._file.close()
        super().close()


def delete_object(path: Path) -> None:
    """Delete one object, if it exists."""

    def delete(store: Any, key: str) -> None:
        with suppress(FileNotFoundError):
            store.delete_file(key)

    ask(path, delete)


def listing(path: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of each object below a folder, by relative name. Locks are left out."""
    from pyarrow.fs import FileSelector

    def listed(store: Any, key: str) -> dict[str, tuple[int, int]]:
        infos = store.get_file_info(FileSelector(key, recursive=True, allow_not_found=True))
        return {info.path[len(key) + 1 :]: (info.size, info.mtime_ns) for info in infos if info.is_file}

    found = ask(path, listed)
    global _newest
    _newest = max([_newest, *(modified for _, modified in found.values())])
    return {name: about for name, about in found.items() if ".lock/" not in name}


def newest() -> int:
    """Return the newest time of any object listed so far, in nanoseconds since 1970 by the store's clock."""
    return _newest


def check_writable(path: Path | str) -> None:
    """Raise `StorageError` unless an object can be written below `path` in its store."""
    if inside(path) is None:
        return
    probe = Path(path) / f".probe-{os.getpid()}-{threading.get_ident()}"
    with named(path, probe):
        write_object(probe, _PROBE)
        if read_object(probe) != _PROBE:
            what = "is not an object store: a test object was written there, but could not be read back"
            raise StorageError(what, address_of(probe), "check the endpoint")
        delete_object(probe)


@contextmanager
def named(path: Path | str, internal: Path) -> Iterator[None]:
    """In errors of the block, replace the address of `internal`, which the user does not know, by that of `path`."""
    try:
        yield
    except StorageError as error:
        address = address_of(internal)
        if address is None or not str(error.where).startswith(address):
            raise
        raise error.at(address_of(path)) from error
