"""Finished shards of a preparation that was killed, with which the same preparation continues.

    PARTS/key     what decides all shards, and their numbers
    PARTS/STEM/   files of a finished shard, in the folders in which the data set has them; see `store.parts`

A killed preparation leaves its hidden directory. The next preparation of the same key goes on in it. A process that
outlived the killed command cannot write there, because the directory has another name then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from raytriever.data.prepare.shards import SIDES, WORK, ShardReport, make_folders
from raytriever.reading.structured import conform
from raytriever.store.commit import disk_errors, leftovers, write_atomically
from raytriever.store.parts import Parts

PARTS, _KEY = "parts", "key"


class _Meta(TypedDict):
    report: ShardReport


def find_unfinished(folder: Path, key: str) -> Path | None:
    """Return the hidden directory of a killed preparation of `folder` with this key, if there is one."""
    for leftover in leftovers(folder):
        with suppress(OSError, ValueError):
            if (leftover / PARTS / _KEY).read_text() == key:
                return leftover
    return None


def begin(folder: Path, key: str) -> int:
    """Make the folders of the shards; of a killed preparation, remove everything but the finished shards.

    Returns:
        The number of finished shards.
    """
    with disk_errors(folder):
        for path in folder.iterdir():
            if path.name != PARTS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        make_folders(folder)
        (folder / PARTS).mkdir(exist_ok=True)
        write_atomically(folder / PARTS / _KEY, key)
        return sum(path.is_dir() and path.name[0] != "." for path in (folder / PARTS).iterdir())


def shards_of(folder: Path) -> Parts:
    """Return the finished shards of a preparation."""
    return Parts(folder / PARTS, durable=False)


def meta_of(report: ShardReport) -> dict[str, Any]:
    """Return the metadata of a finished shard."""
    return {"report": asdict(report)}


def read_report(path: Path, meta: dict[str, Any]) -> ShardReport:
    """Return the report of a finished shard; raises `StorageError` for that of another version."""
    return conform(meta, str(path), _Meta, "prepare the data set again")["report"]


def gather(folder: Path, reports: Iterable[ShardReport]) -> None:
    """Move the files of all shards to the folders of the data set."""
    with disk_errors(folder):
        for report in reports:
            for name in (*SIDES, WORK):
                for file in (folder / PARTS / report.stem / name).iterdir():
                    os.rename(file, folder / name / file.name)
        shutil.rmtree(folder / PARTS)
