"""Interruption by Ctrl-C, SIGTERM (from `ray job stop`) or SIGHUP (from a closed terminal), without loss or damage.

1. Each signal raises KeyboardInterrupt in the main thread. In some code, Python would print the exception and
   continue, keep a lock forever, or lose a thread. If such code runs, the exception is raised a moment later.
2. Not all such code is known. So functions that wait long also call `check_interrupted`.
3. Only commands install these handlers. A program that uses the library keeps its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LATER_SECONDS = 0.02  # delay of an interruption that arrives in the code listed below
# Code in which an interruption is postponed, as module and function ("" for any). Python ignores exceptions in
# callbacks. `logging` would keep a lock that every fork needs. A thread pool would lose a new thread.
_DELICATE = {
    ("weakref", ""),
    ("importlib._bootstrap", "cb"),
    ("logging", "_acquireLock"),
    ("logging", "_releaseLock"),
    ("concurrent.futures.thread", "_adjust_thread_count"),
}

_interrupted = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in a block on SIGINT, SIGTERM and SIGHUP, so that the block can save its results. An
    ignored SIGINT (a background job of a shell) or SIGHUP (`nohup`) stays ignored. Outside the main thread this does
    nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupted.clear()
    before: dict[signal.Signals, Any] = {signal.SIGALRM: signal.getsignal(signal.SIGALRM)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _interrupt)
    try:
        yield
    finally:
        if _interrupted.is_set():
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm after the block would end the process
            _interrupted.clear()  # code after the block was not interrupted
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGHUP and SIGTERM in processes that start in this block. These processes must work until this one stops.

    A closed terminal sends SIGHUP to all processes of its foreground group; `timeout`, systemd and Slurm send SIGTERM
    to all processes that a command has started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has interrupted the innermost `interruptible` block."""
    if _interrupted.is_set():
        raise KeyboardInterrupt


def end_with_parent() -> None:
    """End this process of `multiprocessing` as soon as its parent dies, even by SIGKILL.

    Otherwise a worker would wait forever for a task: the other workers keep the pipe of the tasks open. A fork server
    and a resource tracker end by themselves after the last process that they serve."""
    from multiprocessing import parent_process  # imported here: it takes 0.1 s, and the command line does not need it

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _end_after(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interrupted.set()
    if _is_delicate(frame):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, LATER_SECONDS)
        return
    raise KeyboardInterrupt


def _is_delicate(frame: FrameType | None) -> bool:
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if function == "__del__" or (module, "") in _DELICATE or (module, function) in _DELICATE:
            return True
        frame = frame.f_back
    return False
