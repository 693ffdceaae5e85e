"""Folders of a user: a home that can be written, and a temporary folder short enough for sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import run_python

from raytriever.core.store.commit import committed_directory
from raytriever.core.store.lock import acquire, lock_file_of
from raytriever.core.store.unfinished_pieces import make_once

_PROGRAM = "import os, raytriever; print(os.environ['HOME']); print(os.environ.get('HF_HOME', ''))"


def home_of(home: Path | str, program: str = _PROGRAM, **variables: str) -> list[str]:
    done = run_python("-c", program, env={"PATH": os.environ["PATH"], "HOME": str(home), **variables})
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_home_that_can_be_written_is_kept(tmp_path: Path) -> None:
    assert home_of(tmp_path, RAYTRIEVER_CACHE=str(tmp_path / "cache")) == [str(tmp_path), ""]
    assert not (tmp_path / "cache").exists()


def test_a_missing_home_becomes_a_folder_in_the_cache_or_the_temporary_folder(tmp_path: Path) -> None:
    own = f"home-{os.getuid()}"
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    assert home_of("/nowhere", RAYTRIEVER_CACHE=str(cache))[0] == str(cache / own)
    assert (cache / own).stat().st_mode & 0o777 == 0o700
    for variables in ({}, {"RAYTRIEVER_CACHE": "/proc/none"}):
        home = Path(home_of("/nowhere", TMPDIR=str(temporary), **variables)[0])
        assert home.resolve() == temporary / f"raytriever-{own}"


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """numba unpickles the files of its cache there."""
    prepared = tmp_path / f"raytriever-home-{os.getuid()}"
    prepared.mkdir()
    prepared.chmod(0o777)
    chosen = Path(home_of("/nowhere", TMPDIR=str(tmp_path))[0]).resolve()
    assert chosen.parent == tmp_path
    assert chosen != prepared
    assert chosen.stat().st_mode & 0o077 == 0


def test_models_of_a_home_that_can_only_be_read_are_found(tmp_path: Path) -> None:
    hub = tmp_path / "home" / ".cache" / "huggingface"
    hub.mkdir(parents=True)
    # The administrator, who may run the tests, writes everywhere.
    program = f"import os; os.access = lambda *_: False; {_PROGRAM}"
    assert home_of(tmp_path / "home", program, RAYTRIEVER_CACHE=str(tmp_path / "cache"))[1] == str(hub)


def test_a_long_temporary_folder_has_a_short_name(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    program = "import os, raytriever, tempfile; print(os.environ['TMPDIR']); print(tempfile.mkstemp()[1])"
    short, file = home_of(tmp_path, program, TMPDIR=str(long))
    assert len(short) <= 40
    assert Path(short).resolve() == long
    assert Path(file).parent == Path(short)
    assert [path.name for path in long.iterdir()] == [Path(file).name]
    assert home_of(tmp_path, program, TMPDIR=str(long))[0] == short
    late = f"import tempfile; tempfile.gettempdir(); {program}"
    assert home_of(tmp_path, late, TMPDIR=str(long))[1].startswith(short)
    homeless = home_of("/nowhere", program, TMPDIR=str(long))
    assert homeless[1].startswith(short)
    assert home_of(tmp_path, program, TMPDIR="/tmp")[0] == "/tmp"


def test_what_is_made_in_a_shared_cache_belongs_to_its_group(tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    for folder, mode in ((shared, 0o2775), (private, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
        before = os.umask(0o022)
        try:
            make_once(folder / "datasets" / "mine", lambda entry=folder / "datasets" / "mine": write(entry))
            lock = acquire(folder / "datasets" / "other")
        finally:
            os.umask(before)
        assert bool((folder / "datasets").stat().st_mode & 0o020) == (folder == shared)
        assert bool(lock_file_of(folder / "datasets" / "other").stat().st_mode & 0o020) == (folder == shared)
        lock.release()


def write(entry: Path) -> None:
    with committed_directory(entry) as folder:
        (folder / "data").write_text("1")


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user reaches; those of pytest are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_cache_of_somebody_else_is_replaced_by_a_private_one(reachable: Path) -> None:
    cache = reachable / "cache"
    (cache / "datasets").mkdir(parents=True)
    cache.chmod(0o777)
    (cache / "datasets").chmod(0o555)
    program = """
import os
from raytriever.core.store.cache import cache_folder
if os.getuid() == 0:  # the administrator writes everywhere
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
print(cache_folder(), cache_folder())
"""
    done = run_python("-c", program, variables={"HOME": str(reachable), "RAYTRIEVER_CACHE": str(cache)})
    private = reachable / ".cache" / "raytriever"
    assert done.stdout.split() == [str(private), str(private)]
    assert done.stderr.startswith(f"RAYTRIEVER_CACHE={cache}: you may not write to {cache}/datasets; using {private}.")
    assert done.stderr.count("\n") == 1
