"""Long work is reported, short work is not, and every other line counts."""

from __future__ import annotations

import io
import os
import re
import threading
import time

import pytest

from raytriever import activity as module
from raytriever.activity import activity
from raytriever.progress import Progress
from raytriever.terminal import show, warn, write_line


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report after 0.4 s, so that the tests are short. A thread that an earlier test has left waits for longer."""
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.4)
    monkeypatch.setattr(module, "SHORT_SECONDS", 0.1)
    with module._reporter._changed:
        module._reporter._changed.notify_all()
    for thread in threading.enumerate():
        if thread.name == "raytriever-activity":
            thread.join()


def test_long_work_is_reported_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("indexing 23,641 documents"):
        time.sleep(1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["indexing 23,641 documents: 0 s", "indexing 23,641 documents: 1 s"]


def test_short_blocks_in_a_row_share_a_thread_that_ends_soon() -> None:
    def thread() -> int:
        with activity("searching"):
            [reporter] = [each for each in threading.enumerate() if each.name == "raytriever-activity"]
            return int(reporter.ident or 0)

    assert len({thread() for _ in range(20)}) == 1
    time.sleep(0.8)
    assert all(each.name != "raytriever-activity" for each in threading.enumerate())


def test_short_blocks_inside_a_long_one_are_no_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("the whole"):
        for number in range(3):
            with activity(f"part {number}"):
                time.sleep(0.3)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_the_seconds_are_those_of_the_part_after_the_last_inner_block(capsys: pytest.CaptureFixture[str]) -> None:
    seconds: list[float] = []
    with activity(lambda passed: seconds.append(passed)):
        with activity("inner"):
            time.sleep(0.3)
        time.sleep(0.4)
    assert seconds
    assert max(seconds) < 0.3


@pytest.mark.parametrize("line", [show, warn])
def test_other_lines_end_the_silence(line: object, capsys: pytest.CaptureFixture[str]) -> None:
    with activity("training"):
        for _ in range(12):
            time.sleep(0.05)
            line("a line")  # type: ignore[operator]
    assert "training" not in capsys.readouterr().err


def test_nothing_is_reported_after_the_end_or_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), activity("failing"):
        raise ValueError("no")
    time.sleep(0.6)
    assert capsys.readouterr() == ("", "")


def test_progress_that_does_not_advance_prints_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train", 10, "step") as progress:
        progress.advance(2)
        time.sleep(0.6)
    assert capsys.readouterr().err == "train: 2/10 steps, 0 s so far\n"


def test_lines_to_another_stream_are_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("training"), Progress("hidden", 3, "step", stream=io.StringIO()) as progress:
        for _ in range(9):
            time.sleep(0.06)
            write_line("not seen", progress._stream)
    assert re.fullmatch(r"training: \d s\n", capsys.readouterr().err)


def test_a_forked_process_reports_for_itself(capfd: pytest.CaptureFixture[str]) -> None:
    with activity("the parent"):
        child = os.fork()
        if child == 0:
            with activity("the child"):
                time.sleep(0.6)
            os._exit(0)
        os.waitpid(child, 0)
    assert "the child: 0 s" in capfd.readouterr().err
