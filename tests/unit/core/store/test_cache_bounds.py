"""Bounds of the collections of the cache: the least recently used entries go, and none that is in use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from processes import running_python

from raytriever.core.store.cache import BOUNDS, hold, is_held, keep_within_bound
from raytriever.core.store.commit import committed_directory, read_manifest
from raytriever.core.store.lock import acquire
from raytriever.data import file_digests
from raytriever.data.prepare.open_dataset import open_dataset
from raytriever.experiments.operation.cache_inventory import COLLECTIONS

HOLDER = """
import sys
from pathlib import Path
from raytriever.core.store.cache import hold
hold(Path(sys.argv[1]), Path)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def cache(own_cache: Path) -> Path:
    return own_cache


def entry(path: Path, hours: int) -> Path:
    """Write an entry of 10 kB and a manifest, last used some hours after a fixed time."""
    with committed_directory(path) as aside:
        (aside / "values").write_bytes(bytes(10_000))
    os.utime(path, (1_700_000_000 + 3600 * hours,) * 2)
    return path


@pytest.mark.parametrize("collection", sorted(BOUNDS))
def test_the_least_recently_used_entries_leave_a_collection(
    collection: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache if collection == "pydocs" else cache / collection
    other = entry(cache / "other", 0)
    names = [f"pydocs-{number}" for number in range(5)]
    paths = [entry(folder / name, hours) for name, hours in zip(names, (3, 1, 4, 0, 5), strict=True)]
    monkeypatch.setitem(BOUNDS, collection, 34_000)
    keep_within_bound(paths[1])  # new, and three fit
    assert sorted(path.name for path in folder.glob("pydocs*")) == ["pydocs-1", "pydocs-2", "pydocs-4"]
    monkeypatch.setitem(BOUNDS, collection, 0)
    keep_within_bound(paths[1])
    assert [path.name for path in folder.glob("pydocs*")] == ["pydocs-1"]
    assert other.exists()


def test_entries_that_are_written_or_open_stay(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [entry(cache / "bm25" / str(number), number) for number in range(4)]
    monkeypatch.setitem(BOUNDS, "bm25", 0)
    lock = acquire(paths[0])
    with running_python(HOLDER, paths[1]) as (_, line):
        assert line == "held"
        assert is_held(paths[1])
        keep_within_bound(paths[3])
        assert [path.name for path in sorted((cache / "bm25").glob("[0-9]"))] == ["0", "1", "3"]
    lock.release()
    assert not is_held(paths[1])
    keep_within_bound(paths[3])
    assert [path.name for path in sorted((cache / "bm25").glob("[0-9]"))] == ["3"]


def test_paths_of_the_user_are_not_marked(tmp_path: Path) -> None:
    path = entry(tmp_path / "own", 0)
    holder: set[str] = set()
    hold(path, holder)
    assert not is_held(path)
    assert path.stat().st_mtime == 1_700_000_000


def test_an_open_data_set_stays_and_a_closed_one_leaves(
    tiny_dataset: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, "datasets", 0)
    sources = [Path(shutil.copytree(tiny_dataset, tmp_path / name)) for name in "abc"]
    first = open_dataset(sources[0], [], bm25_language="it")
    open_dataset(sources[1], [])
    third = open_dataset(sources[2], [])
    assert [path.name[0] for path in sorted((cache / "datasets").glob("[a-z]*"))] == ["a", "c"]
    assert len(first.documents.texts) == len(third.documents.texts) == 160


def test_memos_of_digests_are_bounded(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "MOST_MEMOS", 10)
    (cache / "digests").mkdir(parents=True)
    for number in range(12):
        memo = cache / "digests" / f"{number}.json"
        memo.write_text("{}")
        os.utime(memo, (1_700_000_000 + number,) * 2)
    file_digests._bound_memos.cache_clear()
    file_digests.check_directory(entry(tmp_path / "own", 0))
    assert sorted(int(path.stem) for path in (cache / "digests").glob("*.json") if path.stem.isdecimal()) == [
        *range(6, 12)
    ]
    assert read_manifest(tmp_path / "own")


def test_every_collection_that_is_listed_has_a_bound() -> None:
    assert {*COLLECTIONS, "pydocs"} == set(BOUNDS)
