"""Batches come in order, never more than `depth` ahead, errors where they belong, and no thread stays."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from raytriever.training.batch_loader import Prefetcher


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "loader"] == []


class Work:
    """Makes squares, and remembers which it began."""

    def __init__(self, broken: int | None = None) -> None:
        self.begun: list[int] = []
        self.broken = broken
        self.threads: set[int] = set()
        self.events = threading.Condition()

    def __call__(self, step: int) -> int:
        with self.events:
            self.begun.append(step)
            self.threads.add(threading.get_ident())
            self.events.notify_all()
        if step == self.broken:
            raise ValueError(f"step {step}")
        return step**2

    def wait_for(self, count: int) -> None:
        with self.events:
            assert self.events.wait_for(lambda: len(self.begun) >= count, timeout=60)


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("steps", [range(0), range(1), range(40), range(1_000_000, 1_000_005)])
def test_batches_come_in_order_each_made_once(steps: range, depth: int) -> None:
    work = Work()
    with Prefetcher(work, steps, depth) as batches:
        assert list(batches) == [step**2 for step in steps]
        assert list(batches) == []
    assert work.begun == list(steps)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_never_more_than_depth_ahead_of_a_slow_step_and_as_many_when_there_is_time(depth: int) -> None:
    work = Work()
    with Prefetcher(work, range(30), depth) as batches:
        for step in range(10):
            work.wait_for(step + depth)  # without anybody taking: the thread runs ahead by itself
            time.sleep(0.005)
            assert len(work.begun) == step + depth
            assert next(batches) == step**2


def test_an_error_is_raised_at_its_own_step_and_ends_the_iteration() -> None:
    work = Work(broken=3)
    with Prefetcher(work, range(10)) as batches:
        assert [next(batches) for _ in range(3)] == [0, 1, 4]
        with pytest.raises(ValueError, match="step 3") as raised:
            next(batches)
        assert any(entry.name == "__call__" for entry in raised.traceback)  # the traceback shows where it happened
        assert list(batches) == []
    assert work.begun[:4] == [0, 1, 2, 3]


def test_an_error_that_is_no_exception_does_not_leave_the_step_waiting() -> None:
    def make(step: int) -> int:
        raise SystemExit(step)

    with Prefetcher(make, range(3)) as batches, pytest.raises(SystemExit):
        next(batches)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_stops_the_thread(taken: int) -> None:
    work = Work()
    with Prefetcher(work, range(1_000_000)) as batches:
        for _ in range(taken):
            next(batches)
    assert len(work.begun) <= taken + 2
    assert list(batches) == []


def test_leaving_waits_for_the_batch_being_made() -> None:
    begun = threading.Event()

    def make(step: int) -> int:
        begun.set()
        time.sleep(0.2)
        return step

    with Prefetcher(make, range(1_000)):
        assert begun.wait(60)
    assert not any(thread.name.startswith("loader") for thread in threading.enumerate())


@pytest.mark.usefixtures("handled_interrupts")
def test_an_interrupt_wakes_a_step_that_waits() -> None:
    begun, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()

    def make(step: int) -> int:
        assert begun.wait(60)
        time.sleep(0.2)  # until the step waits: Python loses a signal that comes a moment before
        # The batch never comes before the interrupt was seen, so nothing else can wake the step.
        signal.pthread_kill(main, signal.SIGINT)
        assert go_on.wait(60)
        return step

    def train() -> None:
        with Prefetcher(make, range(3)) as batches:
            try:
                begun.set()
                next(batches)
            except KeyboardInterrupt:
                go_on.set()
                raise

    with pytest.raises(KeyboardInterrupt):
        train()
    assert go_on.is_set()


def test_waiting_is_measured_for_the_last_batch() -> None:
    gate = threading.Event()

    def make(step: int) -> int:
        if step == 1:
            assert gate.wait(60)
        return step

    with Prefetcher(make, range(2), depth=1) as batches:
        next(batches)
        threading.Timer(0.2, gate.set).start()
        next(batches)
        assert batches.waited > 0.15
