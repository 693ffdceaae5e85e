"""Answer log: an answer that has arrived survives kills, full disks and damaged lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.core.errors import StorageError
from raytriever.evaluation.annotation.answer_log import FILE, AnswerLog

ENTRY = {"job": "j", "llm": "m", "step": "s", "finish": "stop", "bytes": 9, "read": 3, "written": 1, "guessed": False}
KEYS = [f"{number:064x}" for number in range(40)]


def put(log: AnswerLog, *keys: str) -> None:
    for key in keys:
        log.put(key, {**ENTRY, "content": key[-2:]})


def test_answers_come_back(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    put(log, *KEYS)
    assert log.get(KEYS[7]) == {"key": KEYS[7], **ENTRY, "content": "07"}
    log.close()
    again = AnswerLog(tmp_path)
    assert len(again) == 40
    assert [entry["key"] for entry in again.entries()] == KEYS
    assert again.get("f" * 64) is None
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    again.close()


def test_incomplete_line_is_removed_and_damaged_line_is_skipped(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path)
    put(log, *KEYS[:3])
    log.close()
    file = tmp_path / FILE
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"01"', b'"01')
    file.write_bytes(b"".join(lines) + lines[0][:40] + b"x" * 999)
    again = AnswerLog(tmp_path)
    assert (len(again), again.damaged) == (2, 1)
    assert file.read_bytes() == b"".join(lines)
    assert again.get(KEYS[1]) is None
    put(again, KEYS[1])
    again.close()
    last = AnswerLog(tmp_path)
    assert (len(last), last.damaged) == (3, 1)
    last.close()


def test_full_disk_is_reported_and_the_log_still_opens(small_disk: Path) -> None:
    logs = []

    def fill_it() -> None:
        logs.append(AnswerLog(small_disk))
        for number in range(40):
            logs[0].put(f"{number:064x}", {**ENTRY, "content": "x" * 1000})

    with pytest.raises(StorageError, match="no space left"):
        fill_it()
    if small_disk.is_mount():
        there = len(logs[0])
        logs[0].close()
        again = AnswerLog(small_disk)
        assert (len(again), again.damaged) == (there, 0)
        assert there > 3
        again.close()
