"""Progress of long work, so that no command is silent for long: tqdm's bar on a terminal, plain lines elsewhere.

`activity("indexing 23,641 documents")` prints nothing for a short block. If the package has printed nothing for
`SILENCE_SECONDS`, a thread prints what the innermost open block does, and for how long it has run.
`terminal.seconds_of_silence` takes all output of the package into account, not only the lines of this module.

`Progress` reports how much is done, how fast, and how long the rest will take. Plain lines come at most every few
seconds, so that a log file stays readable. They also appear when nothing advances. Their rate leaves out the first
advance, because it includes one-time work such as compiling and starting threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from raytriever.core.terminal import end_of_silence, presentable, seconds_of_silence, warn, write_line

# The docs promise a line after ten seconds. The sum of both constants is less, because a thread may wait for the GIL.
SILENCE_SECONDS = 8.5
SHORT_SECONDS = 1.0  # a block that began more recently is not reported yet


@dataclass(eq=False)
class _Activity:
    """One open block: the function that makes its line, and the time at which it became the innermost block."""

    line: Callable[[float], str | None]
    began: float


@contextmanager
def activity(doing: str | Callable[[float], str | None]) -> Iterator[None]:
    """Report a block whenever nothing was printed for `SILENCE_SECONDS`.

    Args:
        doing: what the block does, such as `indexing 23,641 documents`; or a function that returns the line to print.
            The function gets the seconds since the block began, or since the last block inside it ended. It returns
            None if it has shown something itself.
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
                end_of_silence()  # the silence begins with the first block, not earlier
            self._open.append(opened)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="raytriever-activity", daemon=True)
                self._thread.start()

    def close(self, opened: _Activity) -> None:
        """Remove a block."""
        with self._changed:
            if opened in self._open:  # an interruption may have prevented `open` from adding it
                self._open.remove(opened)
            if self._open:
                self._open[-1].began = time.monotonic()  # the outer block's work continues now, so its time restarts

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
            # Call the function without the lock, because it may wait for other locks.
            line = opened.line(seconds)
            with self._changed:
                # Print no line about a block that has ended. If the pipe is broken, the block's own output will fail.
                if line and opened in self._open:
                    with suppress(BrokenPipeError):
                        warn(line)
                end_of_silence()


_reporter = _Reporter()
# A forked process lacks its parent's threads, so it starts without open blocks.
os.register_at_fork(after_in_child=_reporter.__init__)  # type: ignore[misc]


LINE_SECONDS = 10.0  # minimum time between two plain lines
LINE_COLUMNS = 100  # maximum length of a line; notes that do not fit are left out
QUIET_SECONDS = 2.0  # shorter work prints no line


class Progress:
    """Progress bar or lines for `total` units of work, on standard error.

    Args:
        title: name of the work, one or two words.
        done: number of units that were done earlier, such as before a run was resumed.
    """

    def __init__(self, title: str, total: int, unit: str, done: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._title, self._total, self._unit = title, total, unit
        self._initial, self._done = done, done
        self._notes: list[str] = []
        self._began = self._last_line = self._last_advance = time.monotonic()
        self._first: tuple[float, int] | None = None  # time of the first advance, and number of units done after it
        self._reporting = ExitStack()
        options: dict[str, Any] = {"total": total, "unit": unit, "initial": done, "dynamic_ncols": True}
        self._bar = None
        if self._stream.isatty():
            from tqdm import tqdm  # a process without bars need not import it

            self._bar = tqdm(desc=presentable(title, self._stream), file=self._stream, **options)

    def advance(self, units: int = 1, **notes: float) -> None:
        """Add `units` to the work done. `notes` are numbers to show at the end of the line, such as the latest loss."""
        self._done += units
        self._last_advance = time.monotonic()
        self._first = self._first or (self._last_advance, self._done)
        if notes:
            self._notes = [f"{name} {value:.4g}" for name, value in notes.items()]
        if self._bar is not None:
            if notes:
                self._bar.set_postfix_str(", ".join(self._notes), refresh=False)
            if self._bar.update(units):
                end_of_silence()
        elif self._last_advance - self._last_line >= LINE_SECONDS and self._done < self._total:
            write_line(self._line(), self._stream)

    def reach(self, done: int, **notes: float) -> None:
        """Advance to `done` units in total. Units that are repeated after a restart are not added again."""
        if done > self._done:
            self.advance(done - self._done, **notes)

    def __enter__(self) -> Progress:
        if self._stream is sys.stderr:
            self._reporting.enter_context(activity(self._report))
        return self

    def __exit__(self, *_: object) -> None:
        self._reporting.close()
        if self._bar is not None:
            self._bar.close()
        elif self._done > self._initial and time.monotonic() - self._began > QUIET_SECONDS:
            write_line(self._line(), self._stream)

    def _report(self, seconds: float) -> str | None:
        """Return the line to print when nothing advances. If there is a bar, draw it again and return None."""
        if self._bar is None:
            return self._line()
        self._bar.refresh()
        return None

    def _line(self) -> str:
        self._last_line = now = time.monotonic()
        is_over, waited = self._done == self._total, now - self._last_advance
        rate = self._rate(self._last_advance if is_over else now)
        seconds = f"{now - self._began:.1f} s" if is_over else f"{now - self._began:.0f} s so far"
        rest = f"{(self._total - self._done) / rate:.0f} s left" if rate and not is_over else seconds
        line = f"{self._title}: {self._done}/{self._total} {self._unit}s"
        line += f", {rate:.3g} {self._unit}s/s, {rest}" if rate else f", {rest}"
        stalled = [f"last {self._unit} {waited:.0f} s ago"] if self._first and waited >= QUIET_SECONDS else []
        for note in (*stalled, *self._notes):
            if len(line) + 2 + len(note) <= LINE_COLUMNS:
                line += f", {note}"
        return line

    def _rate(self, until: float) -> float | None:
        """Return the units per second since the first advance. With a single advance, return the rate since the start
        if that advance did all work, else None. Return None before the first advance."""
        since, done = self._first or (self._began, self._done)
        if self._done == done == self._total:
            since, done = self._began, self._initial
        return (self._done - done) / max(until - since, 1e-9) if self._done > done else None
