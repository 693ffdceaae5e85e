"""Nothing that the data chose reaches a terminal as a control character, and every print goes through one module."""

from __future__ import annotations

import io
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytriever.cli.main import run
from raytriever.core.terminal import one_line, presentable, printable, show

HOSTILE = "\x1b]52;c;aGk=\x07 a\rb \x9b31m \u202egnp.exe \u2066x\u2069 \x00 \x7f \ud800 \U000e0041"
BIDI = {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI"}


@given(st.text(st.characters(), max_size=60))
def test_no_control_character_is_left_and_nothing_else_is_lost(text: str) -> None:
    shown = printable(text)
    for character in set(shown) - {"\n", "\t"}:
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in BIDI
    assert printable(shown) == shown
    shown.encode()
    if not any(unicodedata.category(c) in ("Cc", "Cs", "Cf", "Zl", "Zp") for c in text):
        assert shown == text


@given(st.text(max_size=60))
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    assert "\t" not in one_line(text)


def test_the_letters_of_scripts_that_join_or_run_from_the_right_stay() -> None:
    text = "می\u200cخواهم \u200fשלום 👩\u200d💻 é 漢字"
    assert printable(text) == text


def test_a_hostile_text_is_shown_as_escapes() -> None:
    assert printable("\x1b[2J\r\u202e") == r"\x1b[2J\r\u202e"
    assert one_line("a\nerror: b\x85c") == "a error: b c"


def test_a_terminal_without_the_letters_shows_escapes() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert presentable("café", stream) == r"caf\xe9"


def test_secrets_are_masked_where_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show("see https://host/x?sig=hushhush")
    assert capsys.readouterr().out == "see https://host/x?sig=***\n"


def test_an_error_line_holds_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("search", ["x", "--dataset", f"no{HOSTILE[:-3]}where"]) == 2
    err = capsys.readouterr().err
    assert printable(err) == err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">/dev/full", 2, "error: standard output: no space left on the disk"),
        ("<&- >&- 2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_standard_streams_that_fail(redirection: str, code: int, message: str) -> None:
    program = "import time; time.sleep(0.3); from raytriever.cli.main import run; raise SystemExit(run())"
    line = f'"$0" -c "$1" search --help {redirection}'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("\n") <= 1


def test_an_error_whose_reader_has_gone_keeps_its_exit_code() -> None:
    program = "import time; time.sleep(0.3); from raytriever.cli.main import run; raise SystemExit(run())"
    line = '"$0" -c "$1" search x --nonsense 2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}'
    assert subprocess.run(["bash", "-c", line, sys.executable, program], timeout=60, check=False).returncode == 2
