"""A directory that another command writes is refused by every stage at its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.core.store import lock as locking
from raytriever.core.store.lock import acquire

COMMANDS = {
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
    "annotate": ["--base-url", "http://localhost:1/v1", "--llm", "judge"],
}


@pytest.fixture
def held(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Directory with a lock, which this process holds by another open file."""
    monkeypatch.setattr(locking, "GRACE_SECONDS", 0.05)
    lock = acquire(work / "mine")
    yield Path("mine")
    lock.release()


def test_every_writing_command_refuses_a_locked_directory(held: Path, error_line: Callable[..., str]) -> None:
    Path("study.yaml").write_text("data_sets: {docs: pydocs}\narms: {BM25: bm25}\n")
    for command, words in COMMANDS.items():
        name, *more = command.split()
        line = error_line(name, *more, *words, "--output", held)
        assert line.startswith("mine: in use by "), command
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
    words = ["--dataset", letters, "--base-url", "http://localhost:1/v1", "--llm", "judge"]
    line = error_line("annotate", *words, "--output", "other", "--answers", held)
    assert line.startswith("mine: in use by ")
    assert line.endswith("; wait for it with wait=True, or give another folder with answers")


def test_an_existing_index_is_opened_without_a_lock(held: Path, work: Path, error_line: Callable[..., str]) -> None:
    (work / "mine").mkdir()
    assert "in use" not in error_line("index", "--output", held)
