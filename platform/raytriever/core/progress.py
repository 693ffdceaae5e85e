"""Progress of long work: tqdm's bar on a terminal, plain lines elsewhere.

Both report how much is done, how fast, and how long the rest will take. Plain lines come at most every few seconds, so
that a log file stays readable. They also come when nothing advances, so that it is never silent for long (`activity`).
Their rate leaves out the first advance, which includes one-time work such as compiling and starting threads.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any, TextIO

from tqdm import tqdm

from raytriever.core.activity import activity
from raytriever.core.terminal import end_of_silence, presentable, write_line

LINE_SECONDS = 10.0  # minimum time between two plain lines
LINE_COLUMNS = 100  # notes that would make a line longer are left out
QUIET_SECONDS = 2.0  # shorter work needs no line


class Progress:
    """A bar or lines for `total` units of work, on standard error.

    Args:
        title: name of the work, one or two words.
        done: number of units done before (a resumed run).
    """

    def __init__(self, title: str, total: int, unit: str, done: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._title, self._total, self._unit = title, total, unit
        self._initial, self._done = done, done
        self._notes: list[str] = []
        self._began = self._last_line = self._last_advance = time.monotonic()
        self._first: tuple[float, int] | None = None  # time of the first advance, and units done then
        self._reporting = ExitStack()
        options: dict[str, Any] = {"total": total, "unit": unit, "initial": done, "dynamic_ncols": True}
        shown = presentable(title, self._stream)
        self._bar = tqdm(desc=shown, file=self._stream, **options) if self._stream.isatty() else None

    def advance(self, units: int = 1, **notes: float) -> None:
        """Count work as done; `notes` are numbers that the line shows, such as the latest loss."""
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
        """Count everything up to `done`; what is done a second time after a restart counts once."""
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
        """Return the line for a time without advances; None if the bar is drawn again instead."""
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
        """Return the units per second after the first advance, or of all work if the first advance did everything.
        Return None before the second advance."""
        since, done = self._first or (self._began, self._done)
        if self._done == done == self._total:
            since, done = self._began, self._initial
        return (self._done - done) / max(until - since, 1e-9) if self._done > done else None
