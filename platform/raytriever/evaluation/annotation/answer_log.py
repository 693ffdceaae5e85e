"""Append-only log of all paid answers, as JSON Lines. An answer is on disk before the job uses it.

A line is one object with the key of the request, the job, the answer and the tokens. A killed process may leave an
incomplete last line, which was never used; opening the log removes it. Other unreadable lines are skipped, and their
requests are sent again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import starmap
from pathlib import Path
from typing import Any, TypedDict

from raytriever.core.errors import StorageError, disk_errors, setting
from raytriever.core.reading.json_and_yaml import parse_json
from raytriever.core.store.disk import fsync
from raytriever.core.store.lock import acquire
from raytriever.retrieval.external_encoders.service_budget import TokenCounts, TokenEstimator

FILE = "answers.jsonl"
Entry = dict[str, Any]


class _StoredEntry(TypedDict):
    key: str
    job: str
    llm: str
    content: str
    finish: str
    bytes: int
    read: int
    written: int
    guessed: bool


class AnswerLog:
    """Answer log in a folder. It is locked by one process at a time; `report` gets a line if another has locked it."""

    def __init__(self, folder: Path, wait: bool = False, report: Callable[[str], None] | None = None) -> None:
        self.path = folder / FILE
        self.damaged = 0
        self._lines: dict[str, tuple[int, int]] = {}  # offset and length of the line of each key
        remedy = f"wait for it with {setting('wait', True)}, or give another folder with {setting('answers')}"
        self._lock = acquire(folder, wait=wait, log=report, remedy=remedy)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            fsync(folder)
            self._end = self._read()
            os.ftruncate(self._file, self._end)
        except BaseException:
            self._lock.release()
            raise

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, key: str) -> Entry | None:
        """Return the entry of a request, or None if the log has no answer."""
        return self._entry(*self._lines[key]) if key in self._lines else None

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in the order in which they arrived."""
        yield from starmap(self._entry, self._lines.values())

    def put(self, key: str, entry: Entry) -> None:
        """Store an answer, and return when it is on disk. Raise `StorageError` if it cannot be written."""
        line = json.dumps({"key": key, **entry}).encode() + b"\n"
        with disk_errors(self.path):
            try:
                done = 0
                while done < len(line):
                    done += os.pwrite(self._file, line[done:], self._end + done)
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, self._end)
                raise
        self._lines[key] = (self._end, len(line))
        self._end += len(line)

    def close(self) -> None:
        """Close the log, and release it."""
        os.close(self._file)
        self._lock.release()

    def _entry(self, start: int, length: int) -> Entry:
        entry = _parse(os.pread(self._file, length, start))
        if entry is None:
            raise StorageError("was changed while it was read", str(self.path), "run the same command again")
        return entry

    def _read(self) -> int:
        """Find the position of each entry. Return the offset at which the last complete line ends."""
        end = 0
        with open(self.path, "rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                if entry := _parse(line):
                    self._lines[entry["key"]] = (end, len(line))
                else:
                    self.damaged += 1
                end += len(line)
        return end


def read_costs(log: AnswerLog, llm: str) -> tuple[dict[str, TokenCounts], TokenEstimator]:
    """Return the paid tokens of each job, and a token estimator that is fitted to the answers of the model `llm`."""
    paid: dict[str, TokenCounts] = {}
    estimator = TokenEstimator()
    for entry in log.entries():
        tokens = paid.setdefault(entry["job"], TokenCounts())
        tokens.read += entry["read"]
        tokens.written += entry["written"]
        if entry["llm"] == llm and not entry["guessed"]:
            estimator.record(entry["bytes"], entry["read"])
    return paid, estimator


def _parse(line: bytes) -> Entry | None:
    try:
        return dict(parse_json(line, FILE, _StoredEntry, "ask again"))
    except StorageError:
        return None
