"""Inventory and pruning of the cache: the least recently used entries go first, and never one in use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.cli.operator_commands import read_size
from raytriever.core.store.cache import hold, remove_entry
from raytriever.core.store.capacity import format_size
from raytriever.core.store.commit import committed_directory
from raytriever.core.store.lock import acquire
from raytriever.experiments.operation.cache_inventory import cache_entries, entries_to_prune


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four entries of about 10 kB whose last uses are one hour apart, and older answers of language models."""
    root = tmp_path / "cache"
    monkeypatch.setenv("RAYTRIEVER_CACHE", str(root))
    entries = [root / "answers", root / "datasets" / "squad-1", root / "embeddings" / "e1", root / "pydocs-1"]
    metas: list[dict[str, str]] = [{}, {"name": "squad", "source": "/data/squad"}, {"dataset": "squad"}, {}]
    for hours, (path, meta) in enumerate(zip([*entries, root / "embeddings" / "e2"], [*metas, {}], strict=True)):
        with committed_directory(path, meta) as aside:
            (aside / "values").write_bytes(bytes(10_000))
        for file in (*path.iterdir(), path):
            os.utime(file, (1_700_000_000 + 3600 * hours,) * 2)
    (root / "locks").mkdir()
    return root


def test_entries_are_listed_from_the_least_recently_used(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = cache_entries()
    assert [entry.path.name for entry in entries] == ["answers", "squad-1", "e1", "pydocs-1", "e2"]
    assert entries[1].used_at == 1_700_003_600
    assert entries[1].size == sum(file.stat().st_size for file in entries[1].path.iterdir())
    assert run("cache", ["list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines()[1:4]] == ["answers", "datasets/squad-1", "embeddings/e1"]
    assert out.splitlines()[-1].startswith(f"{cache}: 5 entries, 5")


def test_pruning_removes_the_least_recently_used_to_the_size(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cache", ["prune", "--max-size", "32kb"]) == 0
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "e2", "pydocs-1"]
    out = capsys.readouterr().out
    assert "removed datasets/squad-1, 10." in out
    assert "removed embeddings/e1, 10." in out


def test_an_entry_in_use_and_answers_are_never_pruned(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = acquire(cache / "datasets" / "squad-1")
    try:
        assert [entry.path.name for entry in entries_to_prune(cache_entries(), 0)] == ["e1", "pydocs-1", "e2"]
        [entry] = [entry for entry in cache_entries() if entry.path.name == "squad-1"]
        assert not remove_entry(entry.path)
        assert run("cache", ["prune", "--max-size", "0"]) == 0
    finally:
        lock.release()
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "squad-1"]
    assert "the other entries are in use or cannot be created again" in capsys.readouterr().err


def test_an_entry_that_is_open_is_listed_so_and_never_pruned(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder: set[str] = set()
    hold(cache / "embeddings" / "e1", holder)
    assert run("cache", ["list"]) == 0
    out = capsys.readouterr().out
    assert "embeddings/e1 (in use)\n" in out
    assert run("cache", ["prune", "--max-size", "0"]) == 0
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "e1"]
    del holder
    assert run("cache", ["prune", "--max-size", "0"]) == 0
    assert [entry.path.name for entry in cache_entries()] == ["answers"]


def test_pruning_by_age_removes_what_was_not_used_since(cache: Path) -> None:
    now = time.time()
    for path, hours in ((cache / "pydocs-1", 2), (cache / "embeddings" / "e2", 30)):
        for file in (*path.iterdir(), path):
            os.utime(file, (now - 3_600 * hours,) * 2)
    assert run("cache", ["prune", "--max-age", "1d"]) == 0
    assert sorted(entry.path.name for entry in cache_entries()) == ["answers", "pydocs-1"]
    assert run("cache", ["prune", "--max-age", "1h"]) == 0
    assert [entry.path.name for entry in cache_entries()] == ["answers"]


def test_sizes_are_read_and_shown_with_a_unit() -> None:
    assert [read_size(text) for text in ("500MB", "1.5 kb", "7", "3b", "2TB")] == [500_000_000, 1500, 7, 3, 2e12]
    assert [format_size(size) for size in (0, 999, 1500, 10**10)] == ["0 B", "999 B", "1.5 KB", "10.0 GB"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("prune --max-size lots", "--max-size: 'lots' is not a size; give a size such as 500MB or 10GB"),
        ("prune --max-age soon", "--max-age: 'soon' is not an age; give an age such as 12h or 30d"),
        ("prune", "`cache prune` needs --max-size or --max-age; give a size, such as --max-size 10GB, or an age"),
        ("list --max-age 1d", "`cache list` has no --max-age; leave it out, or use `cache prune`"),
        ("lsit", "unknown action 'lsit'; did you mean 'list'?"),
    ],
)
def test_user_errors(cache: Path, capsys: pytest.CaptureFixture[str], words: str, line: str) -> None:
    assert run("cache", words.split()) == 2
    assert line in capsys.readouterr().err
