"""Checks that the disk and the memory have enough space for a command, before the command writes anything.

The command passes the number of bytes that it will write. Another process may use the space later, so the writing can
still fail (`errors.disk_errors`)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from raytriever.core.errors import StorageError
from raytriever.core.machine import free_system_memory
from raytriever.core.store.cache import cache_folder

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def check_disk(path: Path | str, needed: int, content: str) -> None:
    """Check that the disk of a path has enough free space. Raise `StorageError` if fewer bytes are free.

    Args:
        path: path of the content, which need not exist.
        needed: size of the content in bytes.
        content: what is written, as a plural noun for the error message.
    """
    folder = Path(os.path.abspath(path))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = free_space(folder)
    if free < needed:
        in_cache = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(cache_folder()))
        elsewhere = "run `raytriever cache prune`, or move the cache with RAYTRIEVER_CACHE"
        what = f"{content} need {format_size(needed)}, but only {format_size(free)} is free"
        raise StorageError(what, str(path), elsewhere if in_cache else "free some space or write to another disk")


def check_memory(needed: int, content: str, remedy: str) -> None:
    """Check that the memory of this machine has enough free space. Raise `StorageError` if fewer bytes are free.

    Args:
        needed: bytes of the content.
        content: what needs the memory, as a plural noun for the error message.
    """
    free = free_system_memory()
    if free < needed:
        what = f"{content} need {format_size(needed)}, but only {format_size(free)} is free"
        raise StorageError(what, "the memory", f"end other programs, or {remedy}")


def free_space(folder: Path) -> int:
    """Return the bytes that this user may still write to the disk of a folder."""
    return shutil.disk_usage(folder).free


def format_size(size: int) -> str:
    """Return a number of bytes with a unit: `840 B`, `1.2 MB`."""
    for unit, factor in reversed(UNITS.items()):
        if factor > 1 and size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} B"
