"""Ctrl-C, SIGTERM (which `ray job stop` sends) and SIGHUP (of a closed terminal), as an end that neither gets lost nor
breaks something.

1. All raise KeyboardInterrupt in the main thread wherever it stands; a moment later where Python would print it and go
   on, or be left with a lock that is never released.
2. Not all such places are known, so whoever waits long asks as well.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LATER_SECONDS = 0.02
# Modules and functions of theirs, an empty one for all: callbacks whose exceptions are ignored, and logging's lock,
# which is taken and released by callbacks around every fork.
_DELICATE = {("weakref", ""), ("importlib._bootstrap", "cb"), ("logging", "_acquireLock"), ("logging", "_releaseLock")}

_told = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """A block that each of them ends: what can be kept is kept. Where Ctrl-C is ignored, as shells have it for jobs
    behind, or SIGHUP, as `nohup` has it, it stays so; nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _told.clear()
    before: dict[signal.Signals, Any] = {signal.SIGALRM: signal.getsignal(signal.SIGALRM)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _interrupt)
    try:
        yield
    finally:
        if _told.is_set():
            signal.setitimer(signal.ITIMER_REAL, 0)  # whoever has the signal next knows nothing of it, and would die
            _told.clear()  # what comes after the block was not interrupted
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hangups_blocked() -> Iterator[None]:
    """Start processes that SIGHUP does not reach: a closed terminal sends it to all; this one ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_interrupted() -> None:
    """Raise KeyboardInterrupt where the innermost such block was told to end."""
    if _told.is_set():
        raise KeyboardInterrupt


def end_with_parent() -> None:
    """End this process of `multiprocessing` as soon as the process that asked for it dies, SIGKILL included.

    A worker waits for its next task on a pipe that the other workers hold open too, so it would wait without end. A
    fork server and a resource tracker end when the last process does that they serve.
    """
    from multiprocessing import parent_process  # 0.1 s, which the command line can do without

    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _end_after(sentinel: int) -> None:
    from multiprocessing.connection import wait

    wait([sentinel])
    os._exit(1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _told.set()
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
