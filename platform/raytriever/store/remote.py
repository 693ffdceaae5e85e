"""Object stores as homes of results: each folder of a store has a copy on this machine, on which all code works.

    s3://bucket/runs/mine    <->    COPIES/s3/bucket/runs/mine

`commit` and `lock` call these functions; for a path that is no copy they do nothing.

1. What is committed is uploaded: the files of a directory first, its manifest last. While it is uploaded, the object
   `.unfinished` is in it; until that is removed, the directory does not exist for any reader.
2. `pull` makes a copy equal to the store. Large files of committed directories are left out; `fetch` gets them when
   their manifest is read. The modification time of a copied file is that of its object.
3. Other files, such as logs that grow, are uploaded by `push_changes` of the writer, who has a lease (`lease`).

A store that does not answer is asked again for some minutes. Stores are read and written by `pyarrow.fs`, with the
credentials, the region and the endpoint of the usual variables of the environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from raytriever.errors import ConfigError, StorageError
from raytriever.interruption import check_interrupted
from raytriever.masking import refuse_secrets
from raytriever.terminal import translate_by, warn

T = TypeVar("T")
_report: Callable[[str], None] = warn
COPIES = "RAYTRIEVER_COPIES"  # folder of the copies; a driver sets it for its workers on other hosts
LOCAL = "file://"
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
MANIFEST, UNFINISHED = "manifest.json", ".unfinished"
SMALL_BYTES = 1 << 20
TRANSFERS = 8  # at a time
PATIENCE_SECONDS = 300.0  # with a store that does not answer
# What stores and pyarrow say when asking again is useless.
_REFUSALS = re.compile(
    r"ACCESS_DENIED|Access Denied|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET|Bucket .* not found|"
    r"Forbidden|Unauthorized|PermissionDenied|status 40[13]|HTTP status 40[13]|credentials|Could not resolve host",
    re.IGNORECASE,
)
_PROBE = b"raytriever"
_REFUSED = "check the name of the bucket, the credentials of the environment, and what they may do"


def report_to(report: Callable[[str], None]) -> None:
    """Send the lines about stores that do not answer to a function: a worker has no terminal of its own."""
    global _report
    _report = report


def is_uri(name: str) -> bool:
    """Return True if a name is a URI that is not on this disk."""
    return "://" in name and not name.startswith(LOCAL)


def copies_folder() -> Path:
    """Return the folder of the copies: `remote` in the cache, which is on this machine even if the cache is a store."""
    cache = os.environ.get("RAYTRIEVER_CACHE") or "~/.cache/raytriever"
    folder = os.environ.get(COPIES) or os.path.join("~/.cache/raytriever" if is_uri(cache) else cache, "remote")
    return Path(os.path.abspath(os.path.expanduser(folder)))


def copy_of(uri: str) -> str:
    """Return the path of the copy of a URI; nothing is copied yet. A path without a scheme is returned as it is.

    Raises:
        ConfigError: it names no bucket of a store that can be written, or holds a secret.
    """
    if not is_uri(uri):
        return uri
    refuse_secrets(uri, "output")
    scheme, _, rest = uri.partition("://")
    address, _, query = rest.partition("?")
    bucket, _, key = address.partition("/")
    parts = [part for part in key.split("/") if part]
    if scheme not in SCHEMES:
        raise ConfigError("is no object store that can be written", uri, "give s3://BUCKET/PATH, gs:// or abfss://")
    if not bucket or "://" in rest or {".", ".."} & set(parts):
        raise ConfigError("is no path in a bucket", uri, f"give {scheme}://BUCKET/PATH")
    return str(copies_folder().joinpath(scheme, f"{bucket}?{query}" if query else bucket, *parts))


def address_of(path: Path | str) -> str | None:
    """Return the URI of which a path is the copy; None for any other path."""
    inside = _inside(path)
    if inside is None or len(inside) < 2:
        return None
    scheme, bucket, *parts = inside
    bucket, _, query = bucket.partition("?")
    return f"{scheme}://{'/'.join([bucket, *parts])}{f'?{query}' if query else ''}"


def shown(text: str) -> str:
    """Return a text in which the paths of copies are the URIs that the user knows."""
    folder = f"{copies_folder()}{os.sep}"
    if folder not in text:
        return text
    return re.sub(re.escape(folder) + r"(\w+)/", r"\1://", text)


def pull(path: Path | str, *, owned: bool | None = None) -> None:
    """Make a copy equal to the store, but for large files of committed directories.

    Args:
        path: the file or folder; it may be missing in the store.
        owned: whether a process of this machine writes the folder. Its copy is then newer than the store, and only
            what other machines have committed is added. By default the locks on this machine decide, for each folder.

    Raises:
        StorageError: the store refuses, does not answer, or has both an object and a folder of this name.
    """
    if _inside(path) is None:
        return
    path = Path(path)
    target = _ask(path, lambda store, key: store.get_file_info(key))
    found = _listing(path)
    if target.is_file:
        if found:
            raise StorageError("is an object and a folder", str(path), "give another path")
        _download_if_changed(path, target.size, target.mtime_ns)
        return
    unfinished = [name.removesuffix(UNFINISHED) for name in found if name.rpartition("/")[2] == UNFINISHED]
    whole = [name.removesuffix(MANIFEST) for name in found if name.rpartition("/")[2] == MANIFEST]
    found = {name: about for name, about in found.items() if not name.startswith(tuple(unfinished) or ("\0",))}
    committed = tuple(whole) or ("\0",)
    owners = tuple(_owned_folders(path) if owned is None else [f"{path}{os.sep}"] if owned else []) or ("\0",)
    wanted = {
        name: about
        for name, about in found.items()
        if (about[0] <= SMALL_BYTES or not name.startswith(committed) or name.endswith(MANIFEST))
        and (name.startswith(committed) or not str(path / name).startswith(owners))
    }
    _remove_others(path, found, owners)
    _each(wanted, lambda name: _download_if_changed(path / name, *wanted[name]))


def fetch(path: Path, names: Iterable[str]) -> None:
    """Copy files of a committed directory that are missing on this machine; raises `StorageError`."""
    missing = [name for name in names if not (path / name).exists()] if _inside(path) is not None else []

    def download(name: str) -> None:
        about = _ask(path / name, lambda store, key: store.get_file_info(key))
        if about.is_file:
            _download_if_changed(path / name, about.size, about.mtime_ns)

    _each(missing, download)


def push(path: Path) -> None:
    """Upload a file that was written, or a directory that was committed; raises `StorageError`."""
    if _inside(path) is None:
        return
    if not path.is_dir():
        _upload(path)
        return
    names = sorted(
        file.relative_to(path).as_posix() for here, _, files in os.walk(path) for file in (Path(here, f) for f in files)
    )
    kept = {*names, UNFINISHED, *(json.loads((path / MANIFEST).read_bytes())["files"] if MANIFEST in names else ())}
    write_object(path / UNFINISHED, b"")
    before = _listing(path)
    _each([name for name in names if name != MANIFEST], lambda name: _upload(path / name, before.get(name)))
    _each(before.keys() - kept, lambda name: _delete(path / name))
    if MANIFEST in names:
        _upload(path / MANIFEST)
    _delete(path / UNFINISHED)


def push_part(path: Path, files: Mapping[str, Path]) -> None:
    """Upload files under their names into a directory that is not committed yet; raises `StorageError`."""
    write_object(path / UNFINISHED, b"")

    def upload(name: str) -> None:
        _ask(path / name, lambda store, key: _copy_in(files[name], store, key))

    _each(files, upload)


def sweep(path: Path) -> None:
    """Delete what killed processes have uploaded of directories below a folder; only while nobody uploads there."""
    if _inside(path) is None:
        return
    for name in _listing(path):
        if name.rpartition("/")[2] == UNFINISHED:
            delete((path / name).parent)


def delete(path: Path | str) -> None:
    """Delete a file or folder in the store, the manifest of a folder first; raises `StorageError`."""
    if _inside(path) is None:
        return
    path = Path(path)
    names = sorted(_listing(path), key=lambda name: name.rpartition("/")[2] != MANIFEST)
    for manifest in [name for name in names if name.rpartition("/")[2] == MANIFEST]:
        _delete(path / manifest)
    _each(names, lambda name: _delete(path / name))
    if not names:
        _delete(path)


def check_writable(path: Path | str) -> None:
    """Raise `StorageError` unless the store lets an object be written next to a path."""
    if _inside(path) is None:
        return
    probe = Path(path) / f".probe-{os.getpid()}-{threading.get_ident()}"
    write_object(probe, _PROBE)
    if read_object(probe) != _PROBE:
        raise StorageError("no object store: what was written cannot be read", address_of(probe), "check the endpoint")
    _delete(probe)


class Changes:
    """The files of a copy that are not committed as directories, such as logs, and those of them that are uploaded.

    Args:
        path: the folder; just pulled, or new.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._uploaded = self._state()

    def push(self) -> None:
        """Upload files that have changed since the last call, and delete those that are gone; raises `StorageError`."""
        with self._lock:
            now = self._state()
            for file in [file for file, state in now.items() if self._uploaded.get(file) != state]:
                with suppress(FileNotFoundError):  # it is gone meanwhile
                    _upload(file)
            _each([file for file in self._uploaded if file not in now and not file.exists()], _delete)
            self._uploaded = self._state()

    def _state(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for here, folders, names in os.walk(self._path):
            if MANIFEST in names:
                folders.clear()
                continue
            folders[:] = [name for name in folders if ".aside-" not in name]
            for name in names:
                if ".aside-" in name or name.endswith(".lock"):
                    continue
                with suppress(FileNotFoundError):
                    status = os.stat(os.path.join(here, name))
                    found[Path(here, name)] = status.st_size, status.st_mtime_ns
        return found


translate_by(shown)


# ------------------------------------------------------------------------------------------------------ single objects


def write_object(path: Path, content: bytes) -> None:
    """Write a small object at the place of which a path is the copy, without a copy."""
    _ask(path, lambda store, key: _write(store, key, content))


def read_object(path: Path) -> bytes | None:
    """Return the content of a small object without a copy; None if there is none."""

    def read(store: Any, key: str) -> bytes | None:
        try:
            with store.open_input_stream(key) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    return _ask(path, read)


def list_objects(path: Path) -> dict[str, int]:
    """Return the objects below a path with the store's times of their last writing, in nanoseconds."""
    return {name: modified for name, (_, modified) in _listing(path).items()}


def delete_object(path: Path) -> None:
    """Delete one object; nothing happens if there is none."""
    _delete(path)


def _inside(path: Path | str) -> tuple[str, ...] | None:
    """Return the parts of a path below the folder of the copies; None for any other path."""
    folder = str(copies_folder())
    text = os.path.abspath(path)
    if not text.startswith(folder + os.sep):
        return None
    return Path(text[len(folder) + 1 :]).parts


@lru_cache(maxsize=16)
def _store(scheme: str, bucket: str) -> tuple[Any, str]:
    """Return the file system of a bucket, and the path of the bucket in it."""
    from pyarrow.fs import FileSystem

    bucket, _, query = bucket.partition("?")
    # Small objects are then written by one request instead of three.
    options = [query] if query else []
    options += ["allow_delayed_open=true"] if scheme == "s3" else []
    store, path = FileSystem.from_uri(f"{scheme}://{bucket}/{'?' + '&'.join(options) if options else ''}")
    return store, path.rstrip("/")


def _ask(path: Path, request: Callable[[Any, str], T]) -> T:
    """Return the answer of a store to a request about the object of a copy; ask again while it does not answer.

    Raises:
        StorageError: the store refuses, or does not answer for `PATIENCE_SECONDS`.
    """
    scheme, bucket, *parts = _inside(path) or ()
    began, pause = time.monotonic(), 0.5
    while True:
        try:
            store, root = _store(scheme, bucket)
            return request(store, "/".join([root, *parts]))
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            uri = f"{scheme}://{bucket.partition('?')[0]}"
            if isinstance(error, ValueError) or _REFUSALS.search(str(error)):
                raise StorageError(f"the store refuses ({reason})", address_of(path), _REFUSED) from error
            waited = time.monotonic() - began
            if waited > PATIENCE_SECONDS:
                raise StorageError(
                    f"the store has not answered for {PATIENCE_SECONDS / 60:g} minutes ({reason})",
                    uri,
                    "check the endpoint and the network, then give the same command again: it continues",
                ) from error
            if pause == 0.5:
                minutes = PATIENCE_SECONDS / 60
                _report(f"{uri}: the store does not answer ({reason}); trying again for {minutes:g} minutes")
            check_interrupted()
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _listing(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each object below a folder by its relative name; locks are left out."""
    from pyarrow.fs import FileSelector

    def listed(store: Any, key: str) -> dict[str, tuple[int, int]]:
        infos = store.get_file_info(FileSelector(key, recursive=True, allow_not_found=True))
        return {info.path[len(key) + 1 :]: (info.size, info.mtime_ns) for info in infos if info.is_file}

    found = _ask(path, listed)
    return {name: about for name, about in found.items() if ".lock/" not in name}


def _write(store: Any, key: str, content: bytes) -> None:
    with store.open_output_stream(key) as stream:
        stream.write(content)


def _copy_in(file: Path, store: Any, key: str) -> None:
    with file.open("rb") as source, store.open_output_stream(key) as target:
        shutil.copyfileobj(source, target, 8 << 20)


def _upload(file: Path, before: tuple[int, int] | None = None) -> None:
    """Upload a file, unless the object is that of the copy; the file gets the time of the object."""
    status = file.stat()
    if before == (status.st_size, status.st_mtime_ns):
        return

    def upload(store: Any, key: str) -> Any:
        _copy_in(file, store, key)
        return store.get_file_info(key)

    about = _ask(file, upload)
    if (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns):
        _set_time(file, about.mtime_ns)


def _download_if_changed(file: Path, size: int, modified: int) -> None:
    """Copy an object, unless the copy has its size and its time."""
    with suppress(OSError):
        status = file.stat()
        if (status.st_size, status.st_mtime_ns) == (size, modified):
            return
    aside = file.with_name(f".{file.name}.aside-{os.getpid()}-{threading.get_ident()}")
    file.parent.mkdir(parents=True, exist_ok=True)

    def download(store: Any, key: str) -> None:
        with store.open_input_stream(key) as source, aside.open("wb") as target:
            shutil.copyfileobj(source, target, 8 << 20)

    try:
        _ask(file, download)
        _set_time(aside, modified)
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def _set_time(file: Path, modified: int) -> None:
    """Give a copy the time of its object, unless the object may change in the same second, which is all it tells."""
    if abs(time.time_ns() - modified) > 2_000_000_000:
        os.utime(file, ns=(modified, modified))


def _delete(file: Path) -> None:
    def delete(store: Any, key: str) -> None:
        with suppress(FileNotFoundError):
            store.delete_file(key)

    _ask(file, delete)


def _owned_folders(path: Path) -> list[str]:
    """Return the folders at and below a path that processes of this machine are writing, each with a `/` at its end."""
    locks = [path.with_name(f".{path.name}.lock"), *path.rglob(".*.lock")]
    return [f"{lock.with_name(lock.name[1:-5])}{os.sep}" for lock in locks if _is_locked(lock)]


def _is_locked(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove_others(path: Path, found: Iterable[str], owners: tuple[str, ...]) -> None:
    """Remove files of a copy that the store does not have, and folders that are empty then, outside owned folders."""
    kept = {str(path / name) for name in found}
    for here, _, names in os.walk(path, topdown=False):
        if f"{here}{os.sep}".startswith(owners) or ".aside-" in here:
            continue
        for name in names:
            file = os.path.join(here, name)
            if file not in kept and not name.endswith(".lock") and ".aside-" not in name:
                os.unlink(file)
        with suppress(OSError):
            os.rmdir(here)


def _each(names: Iterable[Any], work: Callable[[Any], None]) -> None:
    """Do work for each name, several at a time; raises the first error."""
    names = list(names)
    if len(names) < 2:
        for name in names:
            work(name)
        return
    with ThreadPoolExecutor(min(TRANSFERS, len(names))) as threads:
        for _ in threads.map(work, names):
            pass
