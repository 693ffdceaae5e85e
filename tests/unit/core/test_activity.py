"""Long work is reported, short work is not, and every other line counts."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from raytriever.core import progress as module
from raytriever.core.progress import Progress, activity
from raytriever.core.terminal import show, warn, write_line


class Clock(threading.Condition):
    """The lock of the reporter, and time that passes only where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.due: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as the reporter does, until so many seconds have passed."""
        self.due = self.now + (timeout or 0.0)
        while self.due is not None:
            super().wait()
        return True

    def tick(self, seconds: float) -> None:
        """Let seconds pass, and the reporter do what is due meanwhile."""
        end = self.now + seconds
        while True:
            with self:
                if module._reporter._thread is None or (self.due is not None and self.due > end):
                    self.now = end
                    return
                if self.due is not None:
                    self.now, self.due = self.due, None
                    self.notify_all()
                super().wait(0.001)  # for the reporter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    for name in ("progress", "terminal"):
        monkeypatch.setattr(f"raytriever.core.{name}.time", SimpleNamespace(monotonic=lambda: clock.now))
    reporter = module._Reporter()
    reporter._changed = clock
    monkeypatch.setattr(module, "_reporter", reporter)
    yield clock
    clock.tick(99)


def test_long_work_is_reported_again_and_again(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with activity("indexing 23,641 documents"):
        clock.tick(20)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["indexing 23,641 documents: 8 s", "indexing 23,641 documents: 17 s"]


def test_short_blocks_inside_a_long_one_are_no_silence(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with activity("the whole"):
        for number in range(3):
            with activity(f"part {number}"):
                clock.tick(6)
    assert capsys.readouterr().err.splitlines() == ["part 1: 2 s", "part 2: 5 s"]


def test_the_seconds_are_those_of_the_part_after_the_last_inner_block(clock: Clock) -> None:
    seconds: list[float] = []
    with activity(lambda passed: seconds.append(passed)):
        with activity("inner"):
            clock.tick(6)
        clock.tick(4)
    assert seconds == [2.5]


@pytest.mark.parametrize("line", [show, warn])
def test_other_lines_end_the_silence(line: object, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with activity("training"):
        for _ in range(12):
            clock.tick(1)
            line("a line")  # type: ignore[operator]
    assert "training" not in capsys.readouterr().err


def test_nothing_is_reported_after_the_end_or_after_a_failure(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), activity("failing"):
        raise ValueError("no")
    clock.tick(20)
    assert capsys.readouterr() == ("", "")


def test_progress_that_does_not_advance_prints_its_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train", 10, "step") as progress:
        progress.advance(2)
        clock.tick(9)
        assert capsys.readouterr().err == "train: 2/10 steps, 8 s so far, last step 8 s ago\n"


def test_lines_to_another_stream_are_no_output(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with activity("training"), Progress("hidden", 3, "step", stream=io.StringIO()) as progress:
        for _ in range(9):
            clock.tick(1)
            write_line("not seen", progress._stream)
    assert capsys.readouterr().err == "training: 8 s\n"


def test_a_forked_process_reports_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(module, "SHORT_SECONDS", 0.1)
    with activity("the parent"):
        child = os.fork()
        if child == 0:
            is_reported = threading.Event()
            with activity(lambda _: is_reported.set()):
                os._exit(0 if is_reported.wait(60) else 1)
        assert os.waitpid(child, 0)[1] == 0
