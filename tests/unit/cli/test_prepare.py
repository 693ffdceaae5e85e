"""`prepare` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytriever.cli.main import run


def test_it_prints_a_summary_and_the_next_command(
    tiny_dataset: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", str(tiny_dataset), "--model", str(tiny_encoder), "--output", "my data; rm"]
    words += ["--passage-length", "16"]
    assert run("prepare", words) == 0
    out, err = capsys.readouterr()
    lines = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line and not line.startswith(" "))
    table = {name: value.strip() for name, value in lines.items()}
    assert table["documents"] == "160"
    assert table["train: positives a query"] == "1.00 (1 to 1)"
    # Six letters twice, "is", and two special tokens: every letter is a token.
    assert table["documents: tokens, 50 % / 90 % / 99 % / most"] == "16 / 16 / 16 / 16"
    assert table["documents: cut at 16 tokens"] == "0.0%"
    assert f"raytriever train --dataset 'my data; rm' --model {tiny_encoder}" in out
    assert "letters: preparing " in err
    assert run("prepare", words) == 0
    assert "prepared before" in capsys.readouterr().err


def test_a_corpus_without_queries_can_be_searched(
    work: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "docs").mkdir()
    (work / "docs" / "corpus.jsonl").write_text('{"_id": "a", "text": "steel"}\n')
    assert run("prepare", ["--dataset", "docs", "--model", str(tiny_encoder), "--output", "own"]) == 0
    out = capsys.readouterr().out
    assert "queries: tokens" not in out
    assert f"raytriever search --dataset own --model {tiny_encoder} 'a question'" in out.splitlines()[-1]
