"""What a person sees while something long goes on: a bar on a terminal, plain lines elsewhere.

Both say how much is done, how fast, and how long it will still take; plain lines come at most every few seconds so
that a log file stays readable.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

from raytriever.terminal import presentable, write_line

LINE_SECONDS = 10.0
LINE_COLUMNS = 100  # notes that would make a line longer are left out
QUIET_SECONDS = 2.0  # what is over sooner needs no line


class Progress:
    """A bar or lines for `total` units of work, on standard error.

    Args:
        title: what is being done, a word or two.
        total: how many units there are.
        unit: their name, such as `step` or `text`.
        done: units already done before now (a continued run).
    """

    def __init__(self, title: str, total: int, unit: str, done: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._title, self._total, self._unit = title, total, unit
        self._initial, self._done = done, done
        self._notes: list[str] = []
        self._began = self._last_line = time.monotonic()
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
        if notes:
            self._notes = [f"{name} {value:.4g}" for name, value in notes.items()]
        if self._bar is not None:
            if notes:
                self._bar.set_postfix_str(", ".join(self._notes), refresh=False)
            self._bar.update(units)
        elif time.monotonic() - self._last_line >= LINE_SECONDS and self._done < self._total:
            self._line()

    def reach(self, done: int, **notes: float) -> None:
        """Count everything up to `done`; what is done a second time after a restart counts once."""
        if done > self._done:
            self.advance(done - self._done, **notes)

    def say(self, text: str) -> None:
        """A line of its own that does not tear the bar."""
        if self._bar is not None:
            self._bar.write(presentable(text, self._stream), file=self._stream)
        else:
            write_line(text, self._stream)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._done > self._initial and time.monotonic() - self._began > QUIET_SECONDS:
            self._line()

    def _line(self) -> None:
        self._last_line = now = time.monotonic()
        seconds = max(now - self._began, 1e-9)
        rate = (self._done - self._initial) / seconds
        left = (self._total - self._done) / rate if rate else float("inf")
        tail = f"{left:.0f} s left" if self._done < self._total else f"{seconds:.1f} s"
        line = f"{self._title}: {self._done}/{self._total} {self._unit}s, {rate:.3g} {self._unit}s/s, {tail}"
        for note in self._notes:
            if len(line) + 2 + len(note) <= LINE_COLUMNS:
                line += f", {note}"
        write_line(line, self._stream)


def say(text: str) -> None:
    """A line on standard error that tears no bar, whoever shows one; from any thread."""
    tqdm.write(presentable(text, sys.stderr), file=sys.stderr)
