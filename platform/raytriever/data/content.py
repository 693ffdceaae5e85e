"""Digests of files, each read once for as long as it does not change.

A corpus of a hundred gigabytes is not read through only to see that it is the one of yesterday: what was computed is
remembered by path, size and time of change.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from raytriever.activity import activity
from raytriever.data.files import open_raw
from raytriever.data.source import SourceFile
from raytriever.errors import StorageError
from raytriever.storage import MANIFEST, cache_folder, disk_errors, read_manifest, write_atomically

_BLOCK = 1 << 22


def content_digest(file: SourceFile) -> str:
    """SHA-256 of the bytes of a file of a source."""
    state = [file.size, file.modified_ns]
    known = _remembered(file.where, state) if file.modified_ns else None
    if known is None:
        digest = hashlib.sha256()
        with disk_errors(file.where, reading=True), open_raw(file.where) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        known = digest.hexdigest()
        _remember(file.where, state, known)
    return known


@activity("comparing the prepared data set with its digests")
def check_directory(place: Path) -> None:
    """Hold every file of a committed directory to the digest in its manifest, unless none has changed since they
    were; raises `StorageError` naming the one that is missing, torn or changed."""
    manifest = read_manifest(place, verify=False)
    names = [MANIFEST, *manifest["files"]]
    found = [(place / name).stat() for name in names]
    state = [[name, status.st_size, status.st_mtime_ns] for name, status in zip(names, found, strict=True)]
    if _remembered(str(place), state) is None:
        read_manifest(place, verify=True)
        _remember(str(place), state, "whole")


def _remembered(where: str, state: list[Any]) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(_memo(where).read_bytes())
        if kept["where"] == where and kept["state"] == _short(state):
            return str(kept["known"])
    return None


def _remember(where: str, state: list[Any], known: str) -> None:
    with suppress(StorageError):  # a full cache costs a reading, not the run
        write_atomically(_memo(where), json.dumps({"where": where, "state": _short(state), "known": known}))


def _short(state: list[Any]) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _memo(where: str) -> Path:
    return cache_folder() / "digests" / f"{hashlib.sha256(where.encode()).hexdigest()[:24]}.json"
