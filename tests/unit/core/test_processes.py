"""Pools of processes and of threads: they end when one dies or fails, and name the item at fault."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from deadly import die_of_zero, die_once, path_of

from raytriever.core import processes
from raytriever.core.numba_threads import in_threads
from raytriever.core.processes import ChildProcess, ProcessDeath, map_in_processes


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


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_each_number_is_in_one_part(threads: int, count: int) -> None:
    parts: list[tuple[int, int]] = []
    in_threads(lambda first, last: parts.append((first, last)), count, threads=threads)
    assert sorted(number for first, last in parts for number in range(first, last)) == [*range(count)]


def test_an_error_in_a_thread_is_raised() -> None:
    def work(first: int, last: int) -> None:
        if last == 100:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        in_threads(work, 100, threads=2)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    in_threads(lambda first, last: time.sleep(0.01), 8, threads=2)
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends the child if it waits for threads of its parent
        in_threads(lambda first, last: time.sleep(0.01), 8, threads=2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_as_many_threads_as_torch_uses() -> None:
    seen: set[int] = set()

    def work(first: int, last: int) -> None:
        seen.add(threading.get_ident())
        time.sleep(0.02)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        in_threads(work, 100)
    finally:
        torch.set_num_threads(before)
    assert seen == {threading.get_ident()}
