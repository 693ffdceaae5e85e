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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "missing: --output"),
        ("--output i --index hnws", "--index: unknown value 'hnws'; did you mean 'hnsw'?"),
        ("--output i --effort 0", "--effort: 0 is out of range; give a value at least 1"),
        ("--output i --top 0", "--top: 0 is out of range; give at least 1"),
        ("--output i --query  ", "--query: the query is empty; give a few words"),
        ("--output i --index roargraph --split train", "--split: the graph is built from the queries of train, so"),
        ("--output .", "cannot read manifest.json"),
    ],
)
def test_user_errors(flags: str, expected: str, error_line: Callable[..., str]) -> None:
    words = flags.split(" ") if flags else []
    if "" in words:  # an empty query
        words = [*words[: words.index("")], " "]
    assert expected in error_line("index", *words)
