"""Progress lines for long work, so that no command is silent for long.

`activity("indexing 23,641 documents")` prints nothing when its block is short. Whenever nothing was printed for
`SILENCE_SECONDS`, a thread prints what the innermost open block does, and for how long it has done so. All output of
the package counts, no matter what prints it (`terminal.seconds_of_silence`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from raytriever.core.terminal import end_of_silence, seconds_of_silence, warn

# The docs promise a line after ten seconds. The sum of both constants is less, because a thread may wait for the GIL.
SILENCE_SECONDS = 8.5
SHORT_SECONDS = 1.0  # a block that is younger is not reported yet


@dataclass(eq=False)
class _Activity:
    """One open block: the function that makes its line, and the time since when it is the innermost one."""

    line: Callable[[float], str | None]
    began: float


@contextmanager
def activity(doing: str | Callable[[float], str | None]) -> Iterator[None]:
    """Report a block whenever nothing was printed for `SILENCE_SECONDS`.

    Args:
        doing: what the block does, as `indexing 23,641 documents`; or a function that is called with the seconds since
            the block began, or since the last block inside it ended. It returns the line, or None where it has shown
            something itself.
    """
    line = doing if callable(doing) else lambda seconds: f"{doing}: {seconds:.0f} s"
    opened = _Activity(line, time.monotonic())
    try:
        _reporter.open(opened)
        yield
    finally:
        _reporter.close(opened)


class _Reporter:
    """The open blocks of this process, and the thread that reports the innermost one. The thread ends some seconds
    after the last block, so a program that searches often does not start one each time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: list[_Activity] = []
        self._thread: threading.Thread | None = None

    def open(self, opened: _Activity) -> None:
        """Add a block."""
        with self._changed:
            if not self._open:
                end_of_silence()  # silence before the first block does not count
            self._open.append(opened)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="raytriever-activity", daemon=True)
                self._thread.start()

    def close(self, opened: _Activity) -> None:
        """Remove a block."""
        with self._changed:
            if opened in self._open:  # an interruption may have come before it was added
                self._open.remove(opened)
            if self._open:
                self._open[-1].began = time.monotonic()  # the outer block continues its work only now

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._open:
                    self._thread = None
                    return
                opened = self._open[-1]
                seconds = time.monotonic() - opened.began
                silence = seconds_of_silence()
                short = min(SHORT_SECONDS - seconds, SILENCE_SECONDS + SHORT_SECONDS - silence)
                wait = max(SILENCE_SECONDS - silence, short)
                if wait > 0:
                    self._changed.wait(wait)
                    continue
            # Not under the lock: a function may wait for locks of its own.
            line = opened.line(seconds)
            with self._changed:
                # A line must not follow the end of what it reports; the work itself meets a broken pipe soon enough.
                if line and opened in self._open:
                    with suppress(BrokenPipeError):
                        warn(line)
                end_of_silence()


_reporter = _Reporter()
# A forked process lacks its parent's threads, so it starts without open blocks.
os.register_at_fork(after_in_child=_reporter.__init__)  # type: ignore[misc]
