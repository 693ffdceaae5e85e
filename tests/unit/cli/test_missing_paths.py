"""Every stage reports a missing path, a locked output and a small disk before it works."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

from raytriever.cli.commands import COMMANDS
from raytriever.cli.main import run
from raytriever.core.store import capacity
from raytriever.core.store import lock as locking
from raytriever.core.store.lock import acquire
from raytriever.training.run_config import Config, dump_config

HEAVY = ("torch", "ray", "transformers", "mlflow", "numba", "pyarrow", "faiss", "matplotlib")
MISSING = "nowhere/at/all"
_OUT = ["--output", "out"]
# Each stage with every option of it that names something to read.
CASES = [
    *(("train", [flag, MISSING]) for flag in ("--dataset", "--extra-datasets", "--model", "--config")),
    ("train", ["--eval-datasets", MISSING]),
    ("train", ["--negatives-per-query", "2", "--negatives-table", MISSING]),
    ("train", ["--loss", "kl", "--negatives-per-query", "2", "--teacher", MISSING]),
    *(("tune", [flag, MISSING]) for flag in ("--dataset", "--model", "--config", "--search-space")),
    ("import", [MISSING, *_OUT]),
    *(("import", [".", *_OUT, flag, MISSING]) for flag in ("--questions", "--model")),
    *(("prepare", [*_OUT, flag, MISSING]) for flag in ("--dataset", "--model")),
    *(("evaluate", [flag, MISSING]) for flag in ("--datasets", "--model")),
    ("evaluate", ["--suite", "beir", "--data-root", MISSING]),
    *(("encode", [*_OUT, flag, MISSING]) for flag in ("--dataset", "--model")),
    ("compare", [MISSING]),
    *(("search", ["words", flag, MISSING]) for flag in ("--dataset", "--model")),
    *(("mine", [*_OUT, "--method", "dense", flag, MISSING]) for flag in ("--dataset", "--model", "--embeddings")),
    ("mine", [*_OUT, "--max-score", "1", "--judge", MISSING]),
    *(("score", [*_OUT, flag, MISSING]) for flag in ("--dataset", "--model", "--negatives", "--run")),
    *(("index", [*_OUT, flag, MISSING]) for flag in ("--dataset", "--model", "--embeddings")),
    ("study", [f"{MISSING}.yaml", *_OUT]),
    *(("runs", [action, MISSING]) for action in ("list", "clean")),
    *(("export", [*_OUT, flag, MISSING]) for flag in ("--model", "--evaluation")),
    *(("annotate", [*_OUT, flag, MISSING]) for flag in ("--dataset", "--candidates", "--prompts")),
    *(("annotate", [*_OUT, "--candidates", "dense", flag, MISSING]) for flag in ("--model", "--embeddings")),
]
_PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr
from raytriever.cli.main import run
for stage, words in json.loads(sys.argv[1]):
    expected = io.StringIO()
    with redirect_stderr(expected):
        code = run(stage, words)
    print(json.dumps([code, expected.getvalue(), [name for name in HEAVY if name in sys.modules]]))
"""


def _run(cases: list[tuple[str, list[str]]], folder: Path) -> list[Any]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = run_python("-c", _PROGRAM.replace("HEAVY", repr(HEAVY)), json.dumps(cases), cwd=folder, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_missing_path_is_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    lines = _run(CASES, tmp_path)
    assert len(lines) == len(CASES)
    for (command, words), (code, expected, heavy) in zip(CASES, lines, strict=True):
        assert code == 2, (command, words, expected)
        assert expected.count("\n") == 1, (command, words, expected)
        assert MISSING in expected, (command, words, expected)
        assert heavy == [], (command, words, heavy)
    assert not list(tmp_path.iterdir())


def test_other_settings_of_a_run_are_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(dump_config(Config()))
    words = ["--dataset", str(tmp_path), "--output", str(tmp_path / "run"), "--learning-rate", "1e-3"]
    [(code, expected, heavy)] = _run([("train", words)], tmp_path)
    assert (code, heavy) == (2, [])
    assert "holds a run with other settings (data.dataset is " in expected


def test_every_command_that_reads_a_path_is_among_them() -> None:
    assert set(COMMANDS) - {command for command, _ in CASES} == {
        "cache",
        "doctor",
        "quickstart",
    }  # which read no path that is given


EMPTY = [
    *((command, words) for command, words in CASES if len(words) > 1 and words[-1] == MISSING and command != "runs"),
    *((command, ["--output", MISSING]) for command in ("train", "tune", "quickstart", "import", "prepare", "compare")),
    ("annotate", [*_OUT, "--answers", MISSING]),
]


def test_an_empty_path_is_refused(error_line: Callable[..., str]) -> None:
    for command, words in EMPTY:
        line = error_line(command, *words[:-1], "")
        assert (
            line == f"{words[-2].lstrip('-').replace('-', '_')}: the path is empty; give a path, or leave the flag out"
        ), (command, words)


def test_the_home_folder_is_expanded_in_flags_and_in_files(
    error_line: Callable[..., str], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(work))
    assert error_line("train", "--dataset=~/none").startswith(f"dataset {work}/none: no data set of this name")
    (work / "mine.yaml").write_text("data: {dataset: ~/none}\n")
    for words in (["--config", work / "mine.yaml"], ["--config=~/mine.yaml"]):
        assert error_line("train", *words).startswith(f"dataset {work}/none: no data set of this name")
    (work / "mine.yaml").write_text("data: {dataset: ''}\n")
    assert "dataset: '' is invalid; the path is empty: give a path" in error_line("train", "--config=~/mine.yaml")


WRITERS = {
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
    Path("study.yaml").write_text("data_sets: {docs: pydocs}\nvariants: {BM25: bm25}\n")
    for command, words in WRITERS.items():
        name, *more = command.split()
        line = error_line(name, *more, *words, "--output", held)
        assert line.startswith("mine: in use by "), command
        assert f", pid {os.getpid()}, since " in line
        assert line.endswith("; wait for it with --wait, or give another --output")
    held.mkdir()
    (held / "config.yaml").write_text("data: {}\n")
    assert "in use by " in error_line("train", "--output", held, "--fresh")
    assert (held / "config.yaml").exists(), "--fresh removes nothing of a run that another command writes"


def test_the_answers_of_annotate_have_their_own_lock(held: Path, error_line: Callable[..., str], letters: Path) -> None:
    words = ["--dataset", letters, "--base-url", "http://localhost:1/v1", "--llm", "judge"]
    line = error_line("annotate", *words, "--output", "other", "--answers", held)
    assert line.startswith("mine: in use by ")
    assert line.endswith("; wait for it with wait=True, or give another folder with answers")


def test_an_existing_index_is_opened_without_a_lock(held: Path, work: Path, error_line: Callable[..., str]) -> None:
    (work / "mine").mkdir()
    assert "in use" not in error_line("index", "--output", held)


@pytest.fixture
def small(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave 100 bytes on the disk of the output, and enough on that of the cache."""
    folder = Path.cwd()
    monkeypatch.setattr(capacity, "free_space", lambda existing: 100 if existing == folder else 10**12)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("command", "words", "content"),
    [
        ("prepare", "", "the shards of the data set need"),
        ("encode", "--model MODEL", "the embeddings need 2"),
        ("index", "--model MODEL --index hnsw", "the files of the index need"),
        ("mine", "", "the negatives need"),
        ("train", "--model MODEL --max-steps 2 --batch-size 8", "the checkpoints and the model need"),
    ],
)
def test_a_command_ends_before_it_writes(
    command: str, words: str, content: str, letters: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path.cwd().iterdir())
    flags = words.replace("MODEL", str(tiny_encoder)).split()
    assert run(command, ["--dataset", str(letters), "--output", "made", *flags]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert content in line
    assert "but only 100 B is free; free some space or write to another disk" in line
    assert not Path("made").exists()
    assert sorted(Path.cwd().iterdir()) == before
