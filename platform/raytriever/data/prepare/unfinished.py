"""Finished shards of a preparation that was killed, with which the same preparation continues.

    WORK/key                what decides all shards, and their numbers
    WORK/STEM.json          report of a finished shard, written last, and the SHA-256 of its files

A killed preparation leaves its hidden directory. The next preparation of the same key goes on in it: whole shards with
a record stay, and everything else is removed first. A process that outlived the killed command cannot write there,
because the directory has another name then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from raytriever.data.prepare.shards import SIDES, WORK, ShardReport, make_folders
from raytriever.errors import StorageError
from raytriever.reading.structured import read_json
from raytriever.storage import disk_errors, files_below, leftovers, sha256_of, write_atomically

_KEY = "key"
_REMEDY = "prepare the data set again"


class _Record(TypedDict):
    report: dict[str, Any]
    files: dict[str, str]


def find_unfinished(folder: Path, key: str) -> Path | None:
    """Return the hidden directory of a killed preparation of `folder` with this key, if there is one."""
    for leftover in leftovers(folder):
        with suppress(OSError, ValueError):
            if (leftover / WORK / _KEY).read_text() == key:
                return leftover
    return None


def begin(folder: Path, key: str) -> int:
    """Make the folders of the shards, or remove all but the finished shards of a killed preparation.

    Returns:
        The number of shards with a record.
    """
    if not (folder / WORK).exists():
        make_folders(folder)
        write_atomically(folder / WORK / _KEY, key)
        return 0
    stems = {file.stem for file in (folder / WORK).glob("*.json")}
    with disk_errors(folder):
        for file in files_below(folder):
            if file.name != _KEY and file.name.partition(".")[0] not in stems:
                file.unlink()
    return len(stems)


def record(folder: Path, report: ShardReport) -> None:
    """Record that all files of a shard are written."""
    files = {str(file.relative_to(folder)): sha256_of(file) for file in _files(folder, report.stem)}
    content = json.dumps(_Record(report=asdict(report), files=files))
    write_atomically(_record_file(folder, report.stem), content, durable=False)


def finished(folder: Path, stem: str) -> ShardReport | None:
    """Return the report of a shard that is finished and whole; None for others. A damaged one is removed."""
    if not _record_file(folder, stem).exists():
        return None
    with suppress(OSError, StorageError, TypeError):  # TypeError: a report of another version
        there = read_json(_record_file(folder, stem), _Record, _REMEDY)
        if all((folder / name).is_file() and sha256_of(folder / name) == sha for name, sha in there["files"].items()):
            return ShardReport(**{**there["report"], "bad": tuple(there["report"]["bad"])})
    for file in [*_files(folder, stem), _record_file(folder, stem)]:
        file.unlink(missing_ok=True)
    return None


def _record_file(folder: Path, stem: str) -> Path:
    return folder / WORK / f"{stem}.json"


def _files(folder: Path, stem: str) -> Iterator[Path]:
    for name in (*SIDES, WORK):
        yield from (file for file in (folder / name).glob(f"{stem}.*") if file.suffix not in (".json", ".begun"))
