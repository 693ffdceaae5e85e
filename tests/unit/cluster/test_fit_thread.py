"""The thread on which a trainer or a tuner fits: a waiting caller gets its result, and may stop waiting."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from raytriever.cluster.train.trainer import FitThread
from raytriever.core.interruption import interruptible


@pytest.fixture
def interruptions(handled_interrupts: None) -> Iterator[None]:
    with interruptible():
        yield


def test_a_failure_is_there_when_waiting_is_over() -> None:
    failure = ValueError("no")

    def fit() -> None:
        raise failure

    thread = FitThread(fit)
    thread.start()
    thread.wait(threading.Event())
    assert thread.failure is failure


def test_something_broken_ends_the_wait_and_not_the_fit() -> None:
    broken, go = threading.Event(), threading.Event()
    thread = FitThread(go.wait)
    thread.start()
    broken.set()
    thread.wait(broken)
    assert thread.is_alive()
    go.set()
    thread.join()
    assert thread.failure is None


@pytest.mark.usefixtures("interruptions")
def test_who_was_interrupted_can_still_wait_for_the_end() -> None:
    """Python 3.11 takes a thread for ended whose `join` was interrupted."""
    go = threading.Event()
    thread = FitThread(go.wait)
    thread.start()
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        thread.wait(threading.Event())
    hurried: list[int] = []

    def hurry() -> None:
        hurried.append(1)
        if len(hurried) == 2:
            go.set()

    thread.end(hurry)
    assert len(hurried) == 2
    thread.join()
    timer.join()


@pytest.mark.usefixtures("interruptions")
def test_an_interruption_that_python_lost_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: lost.append(info.exc_type))

    def collected(phase: str, details: dict[str, int]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(collected)
    gc.collect()
    gc.callbacks.remove(collected)
    assert lost == [KeyboardInterrupt]
    go = threading.Event()
    thread = FitThread(go.wait)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        thread.wait(threading.Event())
    go.set()
    thread.join()
