"""An interruption ends a block at once, or a moment later where at once would lose it or leave a lock behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from processes import children_of, processes, wait_for

from raytriever.core.interruption import check_interrupted, interruptible, signals_blocked

pytestmark = pytest.mark.usefixtures("handled_interrupts", "handled_hangups")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Programs whose worker processes compute without end.
DRIVERS = {
    "preparation": """
from endless import Endless
from raytriever.data.prepare.prepare_dataset import Request
from raytriever.data.prepare.prepare_dataset import in_processes, prepare
prepare(Request(sys.argv[1], Endless("")), run=in_processes)
""",
    "single call": """
from endless import compute
from raytriever.core.processes import ChildProcess
with ChildProcess("endless") as child:
    child.call(None, compute)
""",
}


@pytest.fixture
def handled_hangups() -> Iterator[None]:
    """SIGHUP interrupts, also where the tests were started by `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def finalizer(interrupt: Callable[[], None]) -> None:
    class Dying:
        def __del__(self) -> None:
            interrupt()

    Dying()


def callback(interrupt: Callable[[], None]) -> None:
    """As `WeakValueDictionary` has one for each of its values: a function of the module `weakref`."""
    exec("def remove(): interrupt()", scope := {"__name__": "weakref", "interrupt": interrupt})
    scope["remove"]()


def logging_lock(interrupt: Callable[[], None]) -> None:
    class Lock:
        def acquire(self) -> None:
            interrupt()

        release = acquire

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "_lock", Lock())
        logging._releaseLock()  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", [finalizer, callback, logging_lock])
def test_where_it_would_break_something_it_comes_a_moment_later(
    where: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    reached = []
    before = [signal.getsignal(item) for item in (*SIGNALS, signal.SIGALRM)]

    def block() -> None:
        with interruptible():
            where(lambda: signal.raise_signal(signal.SIGTERM))
            reached.append(1)
            time.sleep(5)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        block()
    assert time.monotonic() - began < 4
    assert (reached, lost) == ([1], [])
    assert [signal.getsignal(item) for item in (*SIGNALS, signal.SIGALRM)] == before


def test_a_block_that_ends_before_the_moment_has_come_leaves_nothing_behind() -> None:
    with interruptible():
        finalizer(lambda: signal.raise_signal(signal.SIGTERM))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    time.sleep(0.1)


def test_an_interruption_is_reported_until_its_block_ends() -> None:
    with interruptible():
        check_interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            check_interrupted()
    check_interrupted()
    with interruptible():
        check_interrupted()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(number)
        check_interrupted()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_to_all_processes_does_not_end_those_that_were_started_without_it(number: int) -> None:
    with signals_blocked():
        process = subprocess.Popen([sys.executable, "-c", "input(); print('alive')"], stdin=-1, stdout=-1, text=True)
    process.send_signal(number)
    assert process.communicate("go on\n")[0] == "alive\n"
    with interruptible(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)  # this process is reached


def test_other_threads_leave_the_handlers_alone() -> None:
    handlers: list[Any] = []

    def work() -> None:
        with interruptible():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("name", DRIVERS)
def test_processes_end_when_the_one_that_started_them_is_killed(name: str, tiny_dataset: Path, tmp_path: Path) -> None:
    computing = tmp_path / "computing"
    computing.mkdir()
    support = str(Path(__file__).parents[2] / "support")
    environment = os.environ | {
        "COMPUTING": str(computing),
        "RAYTRIEVER_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH")])),
    }
    driver = subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{DRIVERS[name]}", str(tiny_dataset)], env=environment, text=True
    )
    started: set[int] = set()
    try:
        wait_for(lambda: any(computing.iterdir()), 60, driver)
        helpers = processes("", children_of(driver.pid))  # a fork server has children of its own
        started = {*helpers, *(child for helper in helpers for child in processes("", children_of(helper)))}
        assert {int(file.name) for file in computing.iterdir()} <= started
        driver.kill()
        driver.wait()
        end = time.monotonic() + 5
        while (left := processes("", started.__contains__)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not left
    finally:
        for pid in [driver.pid, *started]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.wait()
