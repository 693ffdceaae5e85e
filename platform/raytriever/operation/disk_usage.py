"""Sizes and times of files and folders, as numbers and as text: `500MB`, `3.2 GB`, `2026-11-22 14:05`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from raytriever.store.capacity import UNITS
from raytriever.store.commit import MANIFEST
from raytriever.store.disk import walk

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `500MB` or `10GB`; raises `ValueError` with a remedy."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("give a size such as 500MB or 10GB")
    return int(float(match[1]) * UNITS[(match[2] or "").upper()])


def parse_age(text: str) -> float:
    """Return the seconds of an age such as `12h` or `30d`; raises `ValueError` with a remedy."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hd])", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("give an age such as 12h or 30d")
    return float(match[1]) * (3_600 if match[2].lower() == "h" else 86_400)


def format_time(seconds: float | None) -> str:
    """Return a time in seconds since 1970 as local date and time; `-` if it is None."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds is not None else "-"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links are not followed.

    A file that another process removes during the count is skipped.
    """
    return sum(status.st_size for status in _statuses(path))


def last_use_time(path: Path) -> float:
    """Return the time of the last use of an entry, in seconds since 1970.

    It is the newest of the modification time of the entry and of the access times of its files. The manifest is
    ignored, because listing the cache reads it. Most file systems update an access time at most once a day
    (`relatime`).
    """
    return max([path.lstat().st_mtime, *(status.st_atime for status in _statuses(path, without=MANIFEST))])


def _statuses(path: Path, without: str = "") -> Iterator[os.stat_result]:
    """Yield the status of a file, or of each file below a folder except files of one name."""
    if path.is_symlink() or not path.is_dir():
        paths: Iterator[Path] = iter([path])
    else:
        paths = (Path(here, name) for here, _, names in walk(path) for name in names if name != without)
    for one in paths:
        try:
            yield one.lstat()
        except FileNotFoundError:
            continue
