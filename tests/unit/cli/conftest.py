"""Fixtures that run the command line in this process, in an empty folder, with a data set that a test may damage."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run

_PROGRESS = re.compile(r": preparing |: prepared before|: \d+ s$")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty working directory of the command."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(tmp_path / "cache"))
    for name in ("MLFLOW_TRACKING_URI", "RAYTRIEVER_RUNS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def letters(tiny_dataset: Path, tmp_path: Path) -> Path:
    """Copy of the tiny data set: 160 documents and queries, 96 + 32 + 32 judgements."""
    return Path(shutil.copytree(tiny_dataset, tmp_path / "letters"))


@pytest.fixture
def error_line(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a stage that must end with exit code 2, one line and no new file; return the line without `error: `."""

    def end(stage: str, *words: object) -> str:
        before = sorted(work.rglob("*"))
        capsys.readouterr()
        code = run(stage, [str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert not out
        lines = [line for line in err.splitlines() if not _PROGRESS.search(line)]
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        assert err.endswith("\n")
        assert "Traceback" not in err
        assert sorted(work.rglob("*")) == before
        return lines[0].removeprefix("error: ")

    return end
