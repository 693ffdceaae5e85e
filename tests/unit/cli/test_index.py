"""`index` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run


def test_an_index_is_built_then_opened_measured_and_searched_and_never_overwritten(
    letters: Path, tiny_encoder: Path, work: Path, error_line: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(letters), "--model", str(tiny_encoder), "--output", "made", "--index"]
    assert run("index", [*words, "roargraph"]) == 0
    assert "roargraph over 160 passages of width 32, built in" in capsys.readouterr().out
    more = ["--split", "test", "--query", "what is abcdef", "--top", "2", "--effort", "160"]
    before = {file: file.stat().st_mtime_ns for file in Path("made").rglob("*")}
    assert run("index", [*words, "roargraph", *more]) == 0
    out = capsys.readouterr().out
    assert "roargraph over 160 passages of width 32, opened" in out
    recalls = [line.split()[1] for line in out.splitlines() if line.startswith(("10 ", "100 "))]
    assert recalls == ["1.0000", "1.0000"]
    assert sum(" is " in line for line in out.splitlines() if line.startswith(" " * 10)) == 2
    assert {file: file.stat().st_mtime_ns for file in Path("made").rglob("*")} == before
    assert "made: holds another index (roargraph of letters" in error_line("index", *words, "hnsw")
    assert "'tset'" in error_line("index", *words, "roargraph", "--training-split", "tset")
