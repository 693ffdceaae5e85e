"""Progress of long work: a bar on a terminal, plain lines elsewhere.

Both report how much is done, how fast, and how long the rest will take. Plain lines come at most every few seconds, so
that a log file stays readable, and also when nothing advances, so that it is never silent for long (`activity`). The
first advance is left out of every rate: it holds what is done once, such as compiling and starting threads.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import ExitStack
from types import TracebackType
from typing import Never, TextIO

from tqdm import tqdm

from raytriever.activity import activity
from raytriever.terminal import end_of_silence, presentable, write_line

LINE_SECONDS = 10.0
LINE_COLUMNS = 100  # notes that would make a line longer are left out
QUIET_SECONDS = 2.0  # shorter work needs no line
STUCK_PERIODS = 4  # without an advance, after which no time is estimated
RECENT_SECONDS = 60.0  # the time left is estimated from the rate of these seconds


class Progress:
    """A bar or lines for `total` units of work, on standard error.

    Args:
        title: name of the work, one or two words.
        total: number of units.
        unit: name of a unit, such as `step` or `text`.
        done: number of units done before (a resumed run).
    """

    def __init__(self, title: str, total: int, unit: str, done: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._title, self._total, self._unit = title, total, unit
        self._initial, self._done = done, done
        self._notes: list[str] = []
        self._began = self._last_line = self._last_advance = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque()  # moments after an advance, and how much was done then
        self._first: tuple[float, int] | None = None  # the first of them
        self._reporting = ExitStack()
        self._bar = (
            tqdm(
                total=total,
                desc=presentable(title, self._stream),
                unit=unit,
                initial=done,
                file=self._stream,
                dynamic_ncols=True,
            )
            if self._stream.isatty()
            else None
        )

    def advance(self, units: int = 1, **notes: float) -> None:
        """Count work as done; `notes` are the latest numbers worth a glance."""
        self._done += units
        self._mark()
        if notes:
            self._notes = [f"{name} {value:.4g}" for name, value in notes.items()]
        if self._bar is not None:
            if notes:
                self._bar.set_postfix_str(", ".join(self._notes), refresh=False)
            if len(self._marks) == 1:
                self._leave_out_first(self._bar)
            elif self._bar.update(units):
                end_of_silence()
        elif self._last_advance - self._last_line >= LINE_SECONDS and self._done < self._total:
            write_line(self._line(), self._stream)

    def reach(self, done: int, **notes: float) -> None:
        """Count everything up to `done`; what is done a second time after a restart counts once."""
        if done > self._done:
            self.advance(done - self._done, **notes)

    def say(self, text: str) -> None:
        """Print a line without damage to the bar."""
        if self._bar is not None:
            self._bar.write(presentable(text, self._stream), file=self._stream)
            end_of_silence()
        else:
            write_line(text, self._stream)

    def __enter__(self) -> Progress:
        if self._stream is sys.stderr:
            self._reporting.enter_context(activity(self._report))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reporting.close()
        if self._bar is not None:
            self._bar.close()
        elif self._done > self._initial and time.monotonic() - self._began > QUIET_SECONDS:
            write_line(self._line(), self._stream)

    def _mark(self) -> None:
        """Keep this moment for the rates; a long wait, as for a refresh of the negatives, ends the recent work."""
        waited, self._last_advance = time.monotonic() - self._last_advance, time.monotonic()
        if waited > RECENT_SECONDS:
            self._marks.clear()
        self._first = self._first or (self._last_advance, self._done)
        self._marks.append((self._last_advance, self._done))
        while len(self._marks) > 2 and self._marks[1][0] <= self._last_advance - RECENT_SECONDS:
            self._marks.popleft()

    def _leave_out_first(self, bar: tqdm[Never]) -> None:
        """Begin the bar's clock and rate after the first advance."""
        bar.n = bar.initial = self._done
        bar.unpause()
        bar.refresh()
        end_of_silence()

    def _report(self, seconds: float) -> str | None:
        """Return a line for when nothing advances; None where the bar is drawn again instead."""
        if self._bar is None:
            return self._line()
        self._bar.refresh()
        return None

    def _line(self) -> str:
        self._last_line = now = time.monotonic()
        rate = self._rate(now)
        waited = now - self._last_advance
        if self._is_stuck(waited):  # nobody knows how long the rest will take
            return f"{self._title}: {self._done}/{self._total} {self._unit}s, no {self._unit} for {waited:.0f} s"
        rate_text = "" if rate is None else f", {rate:.3g} {self._unit}s/s"
        if self._done == self._total:
            tail = f"{now - self._began:.1f} s"
        elif rate:
            tail = f"{(self._total - self._done) / rate:.0f} s left"
        else:
            tail = f"{now - self._began:.0f} s so far"
        line = f"{self._title}: {self._done}/{self._total} {self._unit}s{rate_text}, {tail}"
        stalled = [f"last {self._unit} {waited:.0f} s ago"] if self._first and waited >= QUIET_SECONDS else []
        for note in (*stalled, *self._notes):
            if len(line) + 2 + len(note) <= LINE_COLUMNS:
                line += f", {note}"
        return line

    def _is_stuck(self, waited: float) -> bool:
        """Return whether the last advance is much longer ago than those before it took."""
        if len(self._marks) < 2 or self._done == self._total:
            return False
        (began, first), (ended, last) = self._marks[0], self._marks[-1]
        return waited > max(LINE_SECONDS, STUCK_PERIODS * (ended - began) / (last - first))

    def _rate(self, now: float) -> float | None:
        """Return units per second of recent work; of all work at its end and after a long wait.

        It is None before the second advance, unless the first one did everything.
        """
        if self._first is None:
            return None
        over = self._done == self._total
        since, done = self._first if over or len(self._marks) == 1 else self._marks[0]
        if self._done == done:
            return (done - self._initial) / max(now - self._began, 1e-9) if over else None
        return (self._done - done) / max(self._last_advance - since if over else now - since, 1e-9)


def say(text: str) -> None:
    """Print a line on standard error without damage to any bar, from any thread."""
    tqdm.write(presentable(text, sys.stderr), file=sys.stderr)
    end_of_silence()
