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


def test_the_next_command_needs_the_judgements_that_are_there(
    work: Path, tiny_encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "set" / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        (work / "set" / f"{name}.jsonl").write_text('{"_id": "a", "text": "steel"}\n')
    judgements = work / "set" / "qrels.tsv"
    judgements.write_text("query-id\tcorpus-id\tscore\na\ta\t1\n")
    model = ["--model", str(tiny_encoder)]
    assert run("prepare", ["--dataset", "set", *model, "--output", "unjudged"]) == 0
    printed = capsys.readouterr()
    assert f"raytriever search --dataset unjudged --model {tiny_encoder}" in printed.out.splitlines()[-1]
    assert "not read: qrels.tsv; judgements are read from qrels/<split>.tsv, such as qrels/test.tsv" in printed.err
    for split, more in (("dev", "--split dev "), ("test", "")):
        judgements = judgements.rename(work / "set" / "qrels" / f"{split}.txt")
        assert run("prepare", ["--dataset", "set", *model, "--output", split]) == 0
        line = capsys.readouterr().out.splitlines()[-1].strip()
        assert line == f"raytriever evaluate --datasets {split} {more}--model {tiny_encoder} --output evaluation"
