"""What a person sees: lines in a log file, a bar on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import termios
from types import SimpleNamespace

import pytest

from raytriever.core.progress import LINE_SECONDS, QUIET_SECONDS, Progress
from raytriever.core.terminal import write_line


class Clock:
    """Clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("raytriever.core.progress.time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


Advances = list[tuple[float, int, dict[str, float]]]  # seconds that pass, steps done then, notes
LONG = "a name far too long for what is left of this line"


@pytest.mark.parametrize(
    ("total", "done", "advances", "expected"),
    [
        pytest.param(
            125,
            0,
            [
                (3, 25, {"loss": 0.5}),
                (LINE_SECONDS, 25, {"loss": 0.123456}),
                (LINE_SECONDS - 1, 25, {"loss": 0.1}),  # too early for another line
                (1, 25, {"loss": 0.05, "learning_rate": 1e-5}),
                (LINE_SECONDS, 25, {"loss": 0.01}),
            ],
            [
                "train: 50/125 steps, 2.5 steps/s, 30 s left, loss 0.1235",
                "train: 100/125 steps, 3.75 steps/s, 7 s left, loss 0.05, learning_rate 1e-05",
                "train: 125/125 steps, 3.33 steps/s, 33.0 s, loss 0.01",
            ],
            id="how much, how fast and how long",
        ),
        pytest.param(
            100,
            0,
            [(60, 1, {}), (10, 10, {}), (89, 89, {})],
            [
                "train: 1/100 steps, 60 s so far",
                "train: 11/100 steps, 1 steps/s, 89 s left",
                "train: 100/100 steps, 1 steps/s, 159.0 s",
            ],
            id="the first advance, which compiles, is left out of the rate",
        ),
        pytest.param(
            100_000,
            0,
            [(1, 45, {}), (12, 12_300, {"loss": 0.01234, LONG: 1.0, "auc": 0.98})],
            ["train: 12345/100000 steps, 1.02e+03 steps/s, 86 s left, loss 0.01234, auc 0.98"],
            id="notes that make a line too long are left out",
        ),
        pytest.param(
            100,
            50,
            [(5, 2, {}), (10, 10, {})],
            ["train: 62/100 steps, 1 steps/s, 38 s left"],
            id="what was done before is counted but not in the rate",
        ),
    ],
)
def test_lines(clock: Clock, total: int, done: int, advances: Advances, expected: list[str]) -> None:
    stream = io.StringIO()
    with Progress("train", total, "step", done=done, stream=stream) as progress:
        for seconds, count, notes in advances:
            clock.now += seconds
            progress.advance(count, **notes)
    assert stream.getvalue().splitlines()[: len(expected)] == expected


@pytest.mark.parametrize(
    ("wait", "rest"),
    [
        (9, "0.1 steps/s, 80 s left, last step 9 s ago, loss 0.5"),
        (31, "0.0312 steps/s, 256 s left, last step 31 s ago, loss 0.5"),
    ],
)
def test_a_line_says_since_when_nothing_advances(clock: Clock, wait: float, rest: str) -> None:
    stream = io.StringIO()
    with Progress("train", 10, "step", stream=stream) as progress:
        clock.now += 1
        progress.advance(1)
        clock.now += 1
        progress.advance(1, loss=0.5)
        clock.now += wait
    assert stream.getvalue() == f"train: 2/10 steps, {rest}\n"


def test_what_is_over_at_once_needs_no_line(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("queries", 10, "text", stream=stream) as progress:
        clock.now += QUIET_SECONDS
        progress.advance(10)
    with Progress("nothing", 0, "text", stream=stream):
        clock.now += 60
    assert stream.getvalue() == ""


def test_on_a_terminal_there_is_a_bar_and_remarks_do_not_tear_it() -> None:
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 120))
    with os.fdopen(terminal, "w") as stream, Progress("train", 3, "step", stream=stream) as progress:
        progress.advance(1, loss=0.25)
        write_line("step 1: dev loss 0.5", stream)
        progress.advance(2, loss=0.125)
        progress._bar.refresh()  # type: ignore[union-attr]
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # how Linux tells the end of a terminal
        pass
    os.close(reader)
    text = shown.decode()
    assert "\rstep 1: dev loss 0.5\r\n" in text
    last = text.rstrip().rsplit("\r", 1)[-1]
    assert re.search(r"train: 100%.*3/3 \[\d\d:\d\d<\d\d:\d\d, .*step/s, loss 0\.125\]", last)
