"""Digests of files, each cached until its file changes, and the check of a directory against its manifest.

A digest is cached by path, size and modification time, so that a corpus of a hundred gigabytes is not read again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from raytriever.core.errors import StorageError
from raytriever.core.progress import activity
from raytriever.core.reading.json_and_yaml import read_json
from raytriever.core.store.cache import cache_folder
from raytriever.core.store.commit import MANIFEST, Manifest, check_digests, check_files, read_manifest, write_atomically
from raytriever.data.data_sources import SourceFile, open_raw

_BLOCK = 1 << 22
MOST_MEMOS = 100_000  # maximum number of cached digests; each is a file of 4 KB on most disks
_EXAMINED = "whole, and its contents examined"


def content_digest(file: SourceFile) -> str:
    """Return the SHA-256 of the bytes of a file of a source."""
    state = [file.size, file.modified_ns]
    stored = _remembered(file.where, state) if file.modified_ns else None
    if stored is None:
        digest = hashlib.sha256()
        with open_raw(file.where) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        stored = digest.hexdigest()
        _remember(file.where, state, stored)
    return stored


@activity("comparing the prepared data set with its digests")
def check_directory(
    folder: Path,
    examine: Callable[[], object] | None = None,
    against: str = "",
    *,
    manifest: Manifest | None = None,
    is_new: bool = False,
) -> Manifest:
    """Compare every file of a committed directory with the digest in its manifest, and return the manifest. Skip the
    comparison if no file has changed since the last one. Raise `StorageError` if a file is missing, damaged or changed,
    or if `examine` raises it.

    Args:
        examine: function that raises `StorageError` if a file has the correct digest but wrong contents. It is
            called again only after a file has changed.
        against: key of the data with which `examine` compares the files. For another key, `examine` is called again.
        manifest: manifest of the directory, if it was already read.
        is_new: True if this process has just committed the directory. Then its digests are cached without reading it.
    """
    manifest = manifest or read_manifest(folder, verify=None)
    files = manifest["files"]
    check_files(folder, files)
    statuses = [(name, (folder / name).stat()) for name in (MANIFEST, *files)]
    state = [[name, status.st_size, status.st_mtime_ns] for name, status in statuses]
    expected = "whole" if examine is None else _EXAMINED + against
    stored = expected if is_new else _remembered(str(folder), state)
    examined = examine is None or (stored or "").startswith(expected)
    if stored is None:
        check_digests(folder, files)
    if examine is not None and not examined:
        examine()
    if is_new or stored is None or not examined:
        _remember(str(folder), state, expected)
    return manifest


def _remembered(where: str, state: list[Any]) -> str | None:
    with suppress(OSError, StorageError):
        memo = read_json(_memo(where), dict[str, str], "remove it")
        if (memo.get("where"), memo.get("state")) == (where, _short(state)):
            return memo.get("known")
    return None


def _remember(where: str, state: list[Any], value: str) -> None:
    _bound_memos()
    with suppress(StorageError):  # on a full disk, go on without caching the digest
        memo = json.dumps({"where": where, "state": _short(state), "known": value})
        write_atomically(_memo(where), memo, durable=False)  # if this file is lost, the directory is compared again


@cache
def _bound_memos() -> None:
    """Remove the older half of the cached digests if there are too many; at most one time in each process."""
    with suppress(OSError):
        memos = list(os.scandir(cache_folder() / "digests"))
        if len(memos) > MOST_MEMOS:
            for memo in sorted(memos, key=lambda path: path.stat().st_mtime)[: len(memos) // 2]:
                os.unlink(memo)


def _short(state: list[Any]) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _memo(where: str) -> Path:
    return cache_folder() / "digests" / f"{hashlib.sha256(where.encode()).hexdigest()[:24]}.json"
