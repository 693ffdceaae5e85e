"""A directory that another command writes is refused by every stage at its start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.store import lock as locking
from raytriever.store.lock import acquire, owner_of

JOBS = Path(__file__).parents[3] / "jobs"
STAGES = {
    "import": ["."],
    "prepare": [],
    "train": ["--fresh"],
    "tune": ["--fresh"],
    "evaluate": ["--datasets", "pydocs", "--fresh"],
    "encode": [],
    "mine": [],
    "score": ["--model", "pydocs"],
    "index": [],
    "export": [],
    "study study.yaml": [],
    "annotate": ["--endpoint", "http://localhost:1/v1", "--llm", "judge"],
}


@pytest.fixture
def held(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory with a lock, which this process holds by another open file."""
    monkeypatch.setattr(locking, "GRACE_SECONDS", 0.05)
    lock = acquire(work / "mine")
    yield Path("mine")
    lock.release()


def test_every_writing_stage_refuses_a_locked_directory(held: Path, error_line: Callable[..., str]) -> None:
    Path("study.yaml").write_text("data_sets: {docs: pydocs}\narms: {BM25: bm25}\n")
    for stage, words in STAGES.items():
        name, *more = stage.split()
        line = error_line(name, *more, *words, "--output", held)
        assert line.startswith("mine: in use by "), stage
        assert f", pid {os.getpid()}, since " in line
        assert line.endswith("; wait for it with --wait, or give another --output")


def test_fresh_removes_nothing_of_a_run_that_another_command_writes(
    held: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "mine").mkdir()
    (work / "mine" / "config.yaml").write_text("data: {}\n")
    (work / "mine" / "steps.jsonl").write_text("a step\n")
    assert run("train", ["--output", str(held), "--fresh"]) == 2
    assert "mine: in use by " in capsys.readouterr().err
    assert (work / "mine" / "steps.jsonl").read_text() == "a step\n"


def test_the_answers_of_annotate_have_their_own_lock(held: Path, error_line: Callable[..., str], letters: Path) -> None:
    words = ["--dataset", letters, "--endpoint", "http://localhost:1/v1", "--llm", "judge"]
    line = error_line("annotate", *words, "--output", "other", "--answers", held)
    assert line.startswith("mine: in use by ")
    assert line.endswith("; wait for it with wait=True, or give another folder with answers")


def test_an_existing_index_is_opened_without_a_lock(held: Path, work: Path, error_line: Callable[..., str]) -> None:
    (work / "mine").mkdir()
    assert "in use" not in error_line("index", "--output", held)


def test_two_real_commands_for_one_directory(work: Path, letters: Path, error_line: Callable[..., str]) -> None:
    first = subprocess.Popen(
        [sys.executable, JOBS / "prepare.py", "--dataset", letters, "--output", work / "made"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while (owner := owner_of("made")) is None or not owner.pid:  # its record is written after the lock is taken
            assert time.monotonic() < until
            time.sleep(0.02)
        assert (owner.pid, owner.command) == (first.pid, "raytriever prepare")
        line = error_line("prepare", "--dataset", letters, "--output", "made/../made")
        assert line.startswith("made/../made: in use by 'raytriever prepare' on host ")
    finally:
        first.send_signal(signal.SIGTERM)  # before the work: two seconds are for imports
        _, said = first.communicate()
    assert first.returncode == 130
    assert "interrupted; run the same command again to continue" in said
    assert sorted(work.iterdir()) == []


@pytest.mark.slow
def test_wait_reuses_the_results_of_the_first_command(work: Path, letters: Path) -> None:
    words = [sys.executable, JOBS / "prepare.py", "--dataset", letters, "--output", "made"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while owner_of("made") is None:
        time.sleep(0.02)
    second = subprocess.run([*words, "--wait"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = first.communicate()[0]
    assert (first.returncode, second.returncode) == (0, 0), (said, second.stdout)
    assert "letters: preparing" in said
    assert f"made: waiting for 'raytriever prepare' on host {os.uname().nodename}, pid {first.pid}" in second.stdout
    assert "letters: prepared before" in second.stdout
    assert owner_of("made") is None
