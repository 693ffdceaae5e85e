"""Ctrl-C and SIGTERM (which `ray job stop` sends), to be heard by who waits long.

Both raise KeyboardInterrupt in the main thread wherever it stands. Where that is in a finaliser or a weak reference's
callback, Python prints it and goes on, so it is kept as well, and whoever waits asks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_told = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """A block that either ends: what can be kept is kept. Where Ctrl-C is ignored, as shells have it for jobs behind,
    it stays so; nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _told.clear()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_interrupted() -> None:
    """Raise KeyboardInterrupt where the innermost such block was told to end."""
    if _told.is_set():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: Any) -> None:
    _told.set()
    raise KeyboardInterrupt
