"""Git commit of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from raytriever.tracking.tracker import git_commit


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, "-C", tmp_path, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    assert git_commit(tmp_path) is None  # no commit yet
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path / "inner") == commit
    (tmp_path / "new.py").write_text("not tracked")
    assert git_commit(tmp_path) == commit
    (tmp_path / "inner" / "a.py").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def test_outside_a_checkout_and_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
    assert git_commit(tmp_path / "missing") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(Path(__file__).parent) is None
