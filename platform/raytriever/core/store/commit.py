"""Everything on disk commits the same way, so that what a crash leaves behind is never mistaken for a result.

1. Write aside: into a hidden sibling on the same file system.
2. fsync every file, then write `manifest.json` last: the `format`, each file's size and SHA-256, and the writer's
   `meta`.
3. One rename moves the directory to its final path; fsync of the parent makes that durable. A directory that is
   replaced is renamed first. If the process dies between these two renames, the next command does the second one.

What has no valid manifest does not exist."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

from raytriever.core.errors import ASIDE, StorageError, disk_errors
from raytriever.core.machine import usable_cores
from raytriever.core.reading.json_and_yaml import parse_json, read_json
from raytriever.core.reading.regular_files import open_regular
from raytriever.core.store import object_stores, remote_folders
from raytriever.core.store.disk import files_below, fsync, make_folder, walk
from raytriever.core.store.lock import acquire, check_owner, lock_file_of, owner_of

MANIFEST = object_stores.MANIFEST
FORMAT = 1  # version of all committed directories, runs and sweeps; other versions are refused
_STALE_SECONDS = 60  # age at which a temporary directory without an owner is removed


def sha256_of(file: Path | str) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def committed_directory(
    path: Path | str,
    meta: Mapping[str, Any] | None = None,
    *,
    replace: bool = False,
    begun: Path | None = None,
    durable: bool = True,
    entries: Mapping[str, FileEntry] | None = None,
) -> Iterator[Path]:
    """Yield a directory to write into. It appears at `path` as a whole, or not at all. Raise `StorageError` if `path`
    exists and `replace` is false, or the disk is full or may not be written.

    Args:
        path: final path of the directory; its parents are made.
        meta: metadata for the manifest. It is read when the block ends, so the block may still add to it.
        replace: replace an existing directory, which is moved back on failure.
        begun: one of the `leftovers` of `path`, to be continued; by default an empty directory is yielded.
        durable: whether the directory survives a crash of the machine. If not, a crash may leave wrong contents.
        entries: manifest entries of files that their writers have hashed, or that are in the object store
            already (`take_piece`); read when the block ends.
    """
    path = Path(os.path.abspath(path))
    with disk_errors(path):
        _restore(path)
        if not replace:
            refuse_existing(path)
        make_folder(path.parent)
        _sweep(path, begun)  # before writing, because the disk may be full
        aside = _hidden(path)
        lock = acquire(aside)
        try:
            if begun is None:
                aside.mkdir()
            else:
                os.rename(begun, aside)
                lock_file_of(begun).unlink(missing_ok=True)
            yield aside
            _seal(aside, meta or {}, durable, entries or {})
            check_owner(path)
            _put(aside, path, replace, durable)
            remote_folders.push(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            lock.release()


@contextmanager
def one_writer(
    path: Path | str, *, wait: bool = False, log: Callable[[str], None] | None = None, remedy: str | None = None
) -> Iterator[None]:
    """Hold the lock of `path` in a block, so that no other command writes there; see `lock.acquire`."""
    lock = acquire(path, wait=wait, log=log, remedy=remedy)
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path | str, content: str | bytes | Iterable[str], durable: bool = True) -> None:
    """Write one file as a whole or not at all. It may replace a file, but never a pipe, a socket or a device.

    Large content may be an iterable of texts; then memory never holds all texts at once.
    Without `durable`, the call does not wait for the disk, so a crash of the machine may lose or empty the file.
    If the file's directory is not committed yet, its commit makes the file durable and uploads it."""
    path = Path(os.path.abspath(path))
    is_committed_later = ASIDE in str(path.parent)
    _write(path, content, durable and not is_committed_later)
    if not is_committed_later:
        remote_folders.push(path.parent if path.name == MANIFEST else path)


def _write(path: Path, content: str | bytes | Iterable[str], durable: bool) -> None:
    aside = _hidden(path)
    with disk_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise StorageError("is a pipe, a socket or a device", str(path), "give the path of a regular file")
        make_folder(path.parent)
        try:
            with open(aside, "xb") as stream:
                for piece in [content] if isinstance(content, str | bytes) else content:
                    stream.write(piece.encode() if isinstance(piece, str) else piece)
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            check_owner(path)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        if durable:
            fsync(path.parent)


def put_file(file: Path, work: Path, save: Callable[[Path], object], durable: bool = False) -> Path:
    """Write a file of a directory that is committed later, and return its path.

    `save` writes the file in the folder `work`, which is not committed. The file is then renamed to `file`. The file is
    uploaded before the rename, unless its directory is hidden; so the lease does not upload it a second time."""
    aside = work / f".{file.stem}{ASIDE}{secrets.token_hex(6)}{file.suffix}"
    save(aside)
    if durable:
        fsync(aside)
    check_owner(file)
    if ASIDE not in str(file.parent):
        remote_folders.push(aside, file)
    os.replace(aside, file)
    return file


def complete(path: Path) -> None:
    """Download all files of an input in an object store, except the checkpoints of runs. Ignore a local path."""
    if object_stores.address_of(path) is None:
        return
    remote_folders.pull(path)
    for manifest in path.rglob(MANIFEST):
        if "checkpoints" not in manifest.relative_to(path).parts:
            is_committed(manifest.parent)  # this call also downloads the large files


def remove(path: Path, *, whole: bool = False) -> None:
    """Remove a file or folder that a command has written, if it exists. With `whole`, raise an error if a file of
    the folder cannot be removed. Without it, leave such files."""
    with disk_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=not whole)
        else:
            path.unlink(missing_ok=True)
    remote_folders.delete(path)


class FileEntry(TypedDict):
    """Entry of a file in a manifest."""

    size: int
    sha256: str


class Manifest(TypedDict):
    """Manifest of a committed directory: the number of its format, its files by name, and its writer's metadata."""

    format: int
    files: dict[str, FileEntry]
    meta: dict[str, Any]


def is_committed(path: Path) -> bool:
    """Return whether a directory was committed and has every file of its manifest, with the right size."""
    try:
        check_names(path)
    except StorageError:
        return False
    return True


def check_names(path: Path) -> None:
    """Raise `StorageError` unless a directory was committed and has every file of its manifest, in the right size."""
    read_manifest(path, verify=False)


def read_manifest(path: Path | str, verify: bool | None = True) -> Manifest:
    """Return the manifest of a committed directory: `{"format", "files": {name: {"size", "sha256"}}, "meta": {...}}`.
    Raise `StorageError` if the manifest is missing or has another format, or if a file that it names is missing,
    damaged or changed.

    Args:
        verify: True to compare every byte, False to compare names and sizes, None to read only the manifest.
    """
    path, remedy = Path(path), "make the directory again"
    if not (path / MANIFEST).exists():
        remote_folders.pull(path, owned=True)
    try:
        manifest = read_json(path / MANIFEST, Manifest, remedy, format=FORMAT)
    except OSError as error:
        what = f"cannot read {MANIFEST} ({error.strerror})"
        raise StorageError(what, str(path), "if it was never completed, make it again") from error
    if verify is not None:
        check_files(path, manifest["files"])
    if verify:
        check_digests(path, manifest["files"])
    return manifest


def check_files(path: Path, files: Mapping[str, FileEntry]) -> None:
    """Raise `StorageError` unless a directory has every file of its manifest, with the right size."""
    remedy = "make the directory again"
    for name in files:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise StorageError(f"names {name!r}, which is outside of its directory", str(path / MANIFEST), remedy)
    remote_folders.fetch(path, files)
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            raise StorageError("is missing, though the manifest names it", str(file), remedy)
        if (size := file.stat().st_size) != entry["size"]:
            state = "incomplete" if size < entry["size"] else "damaged or changed"
            raise StorageError(f"is {state}: {size} bytes instead of {entry['size']}", str(file), remedy)


def check_digests(path: Path, files: Mapping[str, FileEntry]) -> None:
    """Raise `StorageError` for a file of a directory whose bytes have changed."""
    with ThreadPoolExecutor(usable_cores()) as threads:  # hashing releases the GIL
        digests = threads.map(lambda name: sha256_of(path / name), files)
        for (name, entry), digest in zip(files.items(), digests, strict=True):
            if digest != entry["sha256"]:
                what = "has changed: its SHA-256 is not the manifest's"
                raise StorageError(what, str(path / name), "make the directory again")


def refuse_existing(path: Path) -> None:
    """Raise `StorageError` if the path exists. Call it before the long work whose result would be written there."""
    if path.exists():
        raise StorageError("already exists", where=str(path), remedy="give another path, or remove this one")


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}{ASIDE}{secrets.token_hex(6)}")


def _seal(directory: Path, meta: Mapping[str, Any], durable: bool, known: Mapping[str, FileEntry]) -> None:
    entries = dict(known)
    for file in files_below(directory):
        if durable:
            fsync(file)
        if (name := file.relative_to(directory).as_posix()) not in known:
            entries[name] = entry_of(file)
    if durable:
        for folder in (Path(here, name) for here, names, _ in walk(directory) for name in names):
            fsync(folder)
    _write(directory / MANIFEST, manifest_text(entries, meta), durable)


def manifest_text(files: Mapping[str, FileEntry], meta: Mapping[str, Any]) -> str:
    """Return the text of a manifest."""
    return json.dumps({"format": FORMAT, "files": dict(files), "meta": dict(meta)}, indent=1)


def entry_of(file: Path) -> FileEntry:
    """Return the entry of a file in a manifest."""
    return {"size": file.stat().st_size, "sha256": sha256_of(file)}


def push_piece(folder: Path, path: Path, name: str) -> None:
    """Upload the files of a folder into a directory of an object store that another process will commit. That process
    calls `take_piece` with the same `name`."""
    files = files_below(folder)
    remote_folders.push_piece(path, {file.name: file for file in files})
    object_stores.write_object(path / f".{name}", json.dumps({file.name: entry_of(file) for file in files}).encode())


def take_piece(path: Path, name: str) -> dict[str, FileEntry] | None:
    """Return the manifest entries of the files that another process uploaded with `push_piece`; None if it has not yet
    finished."""
    content = object_stores.read_object(path / f".{name}")
    remedy = "give the same command again"
    return None if content is None else parse_json(content.decode(), name, dict[str, FileEntry], remedy)


def _put(aside: Path, path: Path, replace: bool, durable: bool) -> None:
    old = _hidden(path) if replace and path.exists() else None
    if old is not None:
        os.rename(path, old)
    try:
        os.rename(aside, path)
    except OSError as error:
        if old is not None:
            os.rename(old, path)
        # Another process has committed `path` meanwhile: POSIX cannot rename onto a directory that is not empty.
        elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            refuse_existing(path)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    if durable:
        fsync(path.parent)


def _restore(path: Path) -> None:
    """Put the new directory in place if its writer was killed between the two renames: then `path` is missing, and
    both the new and the old directory are complete."""
    if not path.exists():
        whole = [leftover / MANIFEST for leftover in leftovers(path) if (leftover / MANIFEST).exists()]
        if len(whole) > 1:
            os.rename(max(whole, key=lambda manifest: manifest.stat().st_mtime).parent, path)


def _sweep(path: Path, begun: Path | None) -> None:
    """Remove temporary directories that killed writers of `path` left some time ago, except `begun`."""
    for leftover in leftovers(path):
        with suppress(OSError):
            if leftover != begun and time.time() - leftover.stat().st_mtime >= _STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
                lock_file_of(leftover).unlink(missing_ok=True)


def leftovers(path: Path | str) -> list[Path]:
    """Return the temporary directories that killed writers of a directory have left. No process holds their lock."""
    path = Path(os.path.abspath(path))
    there = path.parent.glob(f".{glob.escape(path.name)}{ASIDE}*")
    return [leftover for leftover in there if leftover.is_dir() and owner_of(leftover) is None]
