"""The thread that a trainer or a tuner fits on: who waits hears how it ended, and need not wait for its end."""

from __future__ import annotations

import threading

from raytriever.cluster.fit_thread import FitThread


def test_a_failure_is_there_when_waiting_is_over() -> None:
    failure = ValueError("no")

    def fit() -> None:
        raise failure

    thread = FitThread(fit)
    thread.start()
    thread.wait(threading.Event())
    assert thread.failure is failure


def test_what_ends_well_leaves_no_failure() -> None:
    done: list[int] = []
    thread = FitThread(lambda: done.append(1))
    assert thread.failure is None
    thread.start()
    thread.wait(threading.Event())
    assert (done, thread.failure) == ([1], None)


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
