"""Folders of object stores: each has a local copy, and all other code works on the files of the copy.

    s3://bucket/runs/mine    <->    COPIES/s3/bucket/runs/mine

`copy_of` names the copy, and `pull` and `fetch` download its files. `commit` and `lock` call them. For a path that
is not a local copy, they do nothing.

1. A commit uploads a directory: its files first, its manifest last. Until all are uploaded, the directory contains
   the object `.unfinished`, and every reader ignores it.
2. `pull` makes a copy equal to the store, but leaves out large files of committed directories. `fetch` downloads them
   when their manifest is read. The modification time of a copied file is the time of its object.
3. Other files, such as growing logs, are uploaded by `push_changes` of the writing process, which has a lease."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from raytriever.core.errors import ASIDE, ConfigError, StorageError
from raytriever.core.masking import refuse_secrets
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store import object_stores
from raytriever.core.store.object_stores import MANIFEST, ask, is_uri

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
UNFINISHED = ".unfinished"
SMALL_BYTES = 1 << 20  # larger files of committed directories are copied only by `fetch`
CLOCK_ERROR_NS = 3_600_000_000_000  # largest expected difference between this machine's clock and the store's
UNUSED_SECONDS = 7 * 86_400  # large files of a copy are removed if they were not read for this long
IN_USE_SECONDS = 3_600  # files read within this time are kept even if the disk is full
FULL_FRACTION = 0.9  # a disk counts as full if at least this fraction is in use
TRANSFERS = 8  # number of simultaneous uploads or downloads


def copy_of(uri: str) -> str:
    """Return the path of the local copy of a URI. Copy nothing. A path without a scheme is returned unchanged.
    Raise `ConfigError` if the URI names no bucket of a known store, and `DataError` if it holds a secret."""
    if not is_uri(uri):
        return uri
    refuse_secrets(uri, "output")
    scheme, _, rest = uri.partition("://")
    address, _, query = rest.partition("?")
    bucket, _, key = address.partition("/")
    parts = [part for part in key.split("/") if part]
    if scheme not in SCHEMES:
        raise ConfigError("is in no object store that can be written", uri, "give s3://BUCKET/PATH, gs:// or abfss://")
    if not bucket or "://" in rest or {".", ".."} & set(parts):
        raise ConfigError("is not a path in a bucket", uri, f"give {scheme}://BUCKET/PATH")
    return str(object_stores.copies_folder().joinpath(scheme, f"{bucket}?{query}" if query else bucket, *parts))


def has_object(uri: str) -> bool:
    """Return False if an address of a store names neither an object nor a folder; True for any other name."""
    if uri.partition("://")[0] not in SCHEMES or not is_uri(uri):
        return True
    return ask(Path(copy_of(uri)), lambda store, key: store.get_file_info(key)).type.name != "NotFound"


def pull(path: Path | str, *, owned: bool | None = None) -> None:
    """Make a copy equal to the store, except for large files of committed directories. Raise `StorageError` if the
    store refuses, does not answer, or has both an object and a folder of this name.

    Args:
        path: path of the copy; the file or folder may be missing in the store.
        owned: True if a process of this machine is writing the folder. The copy is then newer than the store; only
            directories that other machines have committed are downloaded. None to decide by each folder's local lock.
    """
    if object_stores.inside(path) is None:
        return
    path = Path(path)
    target = ask(path, lambda store, key: store.get_file_info(key))
    found = object_stores.listing(path)
    if target.is_file:
        if found:
            raise StorageError("is both an object and a folder in the store", str(path), "give another path")
        _download_if_changed(path, target.size, target.mtime_ns)
        return
    unfinished = tuple(name.removesuffix(UNFINISHED) for name in found if name.rpartition("/")[2] == UNFINISHED)
    committed = tuple(name.removesuffix(MANIFEST) for name in found if name.rpartition("/")[2] == MANIFEST)
    found = {name: about for name, about in found.items() if not name.startswith(unfinished)}
    owners = tuple(_owned_folders(path)) if owned is None else (f"{path}{os.sep}",) if owned else ()
    _remove_others(path, found, owners)
    wanted = []
    for name, (size, modified) in found.items():
        if not name.startswith(committed) and str(path / name).startswith(owners):
            continue
        if size <= SMALL_BYTES or not name.startswith(committed) or name.endswith(MANIFEST):
            wanted.append(name)
        elif not _is_copied(path / name, size, modified):
            (path / name).unlink(missing_ok=True)  # this file is outdated; `fetch` downloads the new one
    _each(wanted, lambda name: _download_if_changed(path / name, *found[name]))


def fetch(path: Path, names: Iterable[str]) -> None:
    """Download those of the files of a committed directory that are missing here; raises `StorageError`. Set the
    modification time of the directory to now: for `remove_unused` it is the time of the last use."""
    if object_stores.inside(path) is None:
        return
    with suppress(OSError):
        os.utime(path)
    missing = [name for name in names if not (path / name).exists()]
    if missing:
        remove_unused(object_stores.copies_folder())

    def download(name: str) -> None:
        about = ask(path / name, lambda store, key: store.get_file_info(key))
        if about.is_file:
            _download_if_changed(path / name, about.size, about.mtime_ns)

    _each(missing, download)


def remove_unused(folder: Path) -> None:
    """Remove the large files of local copies that were not used for `UNUSED_SECONDS`. `fetch` can download them again.

    If the disk is full to `FULL_FRACTION`, remove more of them, the least recently used first. A process that has
    opened a file can still read it. Folders that a process of this machine is writing are skipped."""
    owners = tuple(_owned_folders(folder))
    last_read = {}
    for here, _, names in os.walk(folder):
        if MANIFEST in names and not f"{here}{os.sep}".startswith(owners):
            with suppress(FileNotFoundError):  # another process has removed it
                last_read[here] = os.stat(here).st_mtime
    for here in sorted(last_read, key=last_read.__getitem__):
        age = time.time() - last_read[here]
        disk = shutil.disk_usage(folder)
        if age > UNUSED_SECONDS or (age > IN_USE_SECONDS and disk.free < (1 - FULL_FRACTION) * disk.total):
            for file in (Path(inner, name) for inner, _, names in os.walk(here) for name in names):
                with suppress(OSError):
                    if file.name != MANIFEST and file.stat().st_size > SMALL_BYTES:
                        file.unlink()


def push(path: Path, name: Path | None = None) -> None:
    """Upload a file, or a directory that is being committed; raises `StorageError`.

    Args:
        name: path to which the file will be renamed; by default `path`.
    """
    if object_stores.inside(path) is None:
        return
    if not path.is_dir():
        _upload(path, name=name)
        return
    names = sorted(Path(here, name).relative_to(path).as_posix() for here, _, files in os.walk(path) for name in files)
    kept = {*names, UNFINISHED}
    if MANIFEST in names:  # other machines may have uploaded files that the manifest names
        kept |= read_json(path / MANIFEST, dict[str, Any], "make the directory again")["files"].keys()
    object_stores.write_object(path / UNFINISHED, b"")
    before = object_stores.listing(path)
    _each([name for name in names if name != MANIFEST], lambda name: _upload(path / name, before.get(name)))
    _each(before.keys() - kept, lambda name: object_stores.delete_object(path / name))
    if MANIFEST in names:
        _upload(path / MANIFEST)
    object_stores.delete_object(path / UNFINISHED)


def push_piece(path: Path, files: Mapping[str, Path]) -> None:
    """Upload files, by name, into a directory that is not committed yet; raises `StorageError`."""
    object_stores.write_object(path / UNFINISHED, b"")
    _each(files, lambda name: ask(path / name, lambda store, key: _copy_in(files[name], store, key)))


def sweep(path: Path) -> None:
    """Delete unfinished uploads of killed processes below a folder. Call it only while no process uploads there."""
    if object_stores.inside(path) is None:
        return
    for name in object_stores.listing(path):
        if name.rpartition("/")[2] == UNFINISHED:
            delete((path / name).parent)


def delete(path: Path | str) -> None:
    """Delete a file or folder in the store, manifests first; raises `StorageError`."""
    if object_stores.inside(path) is None:
        return
    path = Path(path)
    names = sorted(object_stores.listing(path), key=lambda name: name.rpartition("/")[2] != MANIFEST)
    for manifest in [name for name in names if name.rpartition("/")[2] == MANIFEST]:
        object_stores.delete_object(path / manifest)
    _each(names, lambda name: object_stores.delete_object(path / name))
    if not names:
        object_stores.delete_object(path)


class Changes:
    """The files of a copy that are in no committed directory, such as logs, and the state in which each was uploaded.
    Make this object when the folder was just pulled, or is new."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._uploaded = self._state()

    def push(self) -> None:
        """Upload files that changed since the last call; delete objects whose file is gone; raises `StorageError`."""
        with self._lock:
            now = self._state()
            for file in [file for file, state in now.items() if self._uploaded.get(file) != state]:
                with suppress(FileNotFoundError):  # the file has just been removed
                    about = (
                        ask(file, lambda store, key: store.get_file_info(key)) if now[file][0] > SMALL_BYTES else None
                    )
                    # If a large file was uploaded by another process or by `commit.put_file`, it has its object's time.
                    self._uploaded[file] = _upload(file, (about.size, about.mtime_ns) if about else None)
            gone = [file for file in self._uploaded if file not in now and not file.exists()]
            _each(gone, object_stores.delete_object)
            for file in gone:
                del self._uploaded[file]

    def _state(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for here, folders, names in os.walk(self._path):
            if MANIFEST in names:
                folders.clear()
                continue
            folders[:] = [name for name in folders if ASIDE not in name]
            for name in names:
                if ASIDE in name or name.endswith(".lock"):
                    continue
                with suppress(FileNotFoundError):
                    status = os.stat(os.path.join(here, name))
                    found[Path(here, name)] = status.st_size, status.st_mtime_ns
        return found


def _copy_in(file: Path, store: Any, key: str) -> None:
    with file.open("rb") as source, store.open_output_stream(key, compression=None) as target:
        shutil.copyfileobj(source, target, 8 << 20)


def _upload(file: Path, before: tuple[int, int] | None = None, name: Path | None = None) -> tuple[int, int]:
    """Upload a file, unless its size and time equal `before`. Set its time to that of the new object. Return the size
    and time of the uploaded version, even if the file has changed meanwhile. `name` is the path whose object is
    written, by default the file's own path."""
    status = file.stat()
    if before == (status.st_size, status.st_mtime_ns):
        return before

    def upload(store: Any, key: str) -> Any:
        _copy_in(file, store, key)
        return store.get_file_info(key)

    about = ask(name or file, upload)
    if (file.stat().st_size, file.stat().st_mtime_ns) != (status.st_size, status.st_mtime_ns):
        return status.st_size, status.st_mtime_ns
    _set_time(file, about.mtime_ns, file.name)
    return status.st_size, file.stat().st_mtime_ns


def _download_if_changed(file: Path, size: int, modified: int) -> None:
    if _is_copied(file, size, modified):
        return
    aside = file.with_name(f".{file.name}{ASIDE}{os.getpid()}-{threading.get_ident()}")

    def download(store: Any, key: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with store.open_input_stream(key, compression=None) as source, aside.open("wb") as target:
            shutil.copyfileobj(source, target, 8 << 20)

    try:
        ask(file, download)
        _set_time(aside, modified, file.name)
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def _is_copied(file: Path, size: int, modified: int) -> bool:
    try:
        status = file.stat()
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (size, modified)


def _set_time(file: Path, modified: int, name: str) -> None:
    """Set the time of a copy to that of its object, unless the object is small and may change again in the same
    second. Because this machine's clock may be wrong, the newest time of any object shows that the second is over."""
    is_large = file.stat().st_size > SMALL_BYTES and name != MANIFEST
    is_over = object_stores.newest() - modified > 2_000_000_000 or abs(time.time_ns() - modified) > CLOCK_ERROR_NS
    if is_large or is_over:
        os.utime(file, ns=(modified, modified))


def _owned_folders(path: Path) -> list[str]:
    """Return the folders at or below a path that processes of this machine are writing. Each ends in `/`."""
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
    """Remove the files of a copy that are not in the store, and then empty folders. Skip the folders of `owners`."""
    kept = {str(path / name) for name in found}
    for here, _, names in os.walk(path, topdown=False):
        if f"{here}{os.sep}".startswith(owners) or ASIDE in here:
            continue
        for name in names:
            file = os.path.join(here, name)
            if file not in kept and not name.endswith(".lock") and ASIDE not in name:
                os.unlink(file)
        with suppress(OSError):
            os.rmdir(here)


def _each(names: Iterable[Any], work: Callable[[Any], object]) -> None:
    names = list(names)
    if len(names) < 2:  # one transfer needs no thread
        list(map(work, names))
        return
    with ThreadPoolExecutor(min(TRANSFERS, len(names))) as threads:
        list(threads.map(work, names))
