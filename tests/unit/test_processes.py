"""Pools of processes: they end when a process dies, and name the item at fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from deadly import die_of_zero, die_once, path_of

from raytriever import processes
from raytriever.processes import ChildProcess, ProcessDeath, map_in_processes


def test_results_of_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    assert sorted(map_in_processes(abs, iter(range(-30, 0)), [])) == list(range(1, 31))
    assert list(map_in_processes(abs, [], [])) == []


def test_an_error_of_the_function_ends_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    with pytest.raises(ValueError, match="invalid literal"):
        list(map_in_processes(int, ["1", "one", "2"], []))


def test_items_of_a_pool_that_died_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    files = [str(tmp_path / name) for name in "abcdefgh"]
    assert sorted(map_in_processes(die_once, files, [])) == files


def test_an_item_that_kills_three_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 2)
    with pytest.raises(ProcessDeath) as caught:
        list(map_in_processes(die_of_zero, [3, 2, 1, 0, 1, 2, 3], []))
    assert caught.value.args == (0,)


def test_processes_do_not_import_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook has it on its own path."""
    monkeypatch.setattr(processes, "usable_cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    for entry in ("", str(tmp_path)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [entry, *sys.path])
            [child] = map_in_processes(path_of, [0], [])
            assert not {"", str(tmp_path)} & set(child)
            assert sys.path[0] == entry
            with ChildProcess("deadly") as process:
                assert process.call(60, path_of, 0) == child


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_dies_while_others_start_leaves_no_pool_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool of Python 3.11 did not end in two of four tries."""
    monkeypatch.setattr(processes, "usable_cores", lambda: 16)
    for _ in range(20):
        with pytest.raises(ProcessDeath):
            list(map_in_processes(die_of_zero, range(40), []))
