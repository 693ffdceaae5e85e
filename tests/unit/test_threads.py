"""Compiled functions in threads."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from raytriever.threads import in_threads


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_each_number_is_in_one_part(threads: int, count: int) -> None:
    parts: list[tuple[int, int]] = []
    in_threads(lambda first, last: parts.append((first, last)), count, threads=threads)
    assert sorted(number for first, last in parts for number in range(first, last)) == [*range(count)]


def test_a_slow_thread_gets_less_work() -> None:
    times: dict[int, int] = {}
    first_thread = threading.get_ident()

    def work(first: int, last: int) -> None:
        time.sleep(0.2 if threading.get_ident() == first_thread else 0.01)
        times[threading.get_ident()] = times.get(threading.get_ident(), 0) + 1

    in_threads(work, 100, threads=2)
    assert times.pop(first_thread) < sum(times.values())


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
