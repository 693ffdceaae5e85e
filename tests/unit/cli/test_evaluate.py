"""Mistakes in evaluations: each one line, and nothing is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run

Mistake = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "no data set is given; give --datasets PATH, or --suite beir"),
        ("--suite bier", "--suite: unknown value 'bier'; did you mean 'beir'?"),
        ("--datasets LETTERS --metrics ndgc@10", "--metrics: unknown metric 'ndgc@10'; did you mean 'ndcg'?"),
        (
            "--datasets LETTERS --model bm25 --metrics acc@5",
            "query 'q128' has no answers; leave acc@K out of --metrics",
        ),
        ("--datasets LETTERS --relevance-level 0", "--relevance-level: 0 is out of range; give a value at least 1"),
        ("--datasets LETTERS --calibrate f1=0.5", "--calibrate: 'f1=0.5'; write precision=0.9 or recall=0.8"),
        (
            "--datasets LETTERS --calibrate recall=1 --calibration-split test",
            "--calibration-split: letters is measured on",
        ),
        ("--datasets LETTERS --baseline bm25", "--baseline: 'bm25' is none of the models; choose from minilm"),
        ("--datasets LETTERS --model bm25 bm25", "--model: two models are called 'bm25'; call one otherwise"),
    ],
)
def test_evaluate_refuses(mistake: Mistake, letters: Path, words: str, told: str) -> None:
    assert told in mistake("evaluate", *(word.replace("LETTERS", str(letters)) for word in words.split()))


def test_judgements_of_another_corpus(mistake: Mistake, letters: Path) -> None:
    file = letters / "qrels" / "test.tsv"
    file.write_text(file.read_text().replace("\td", "\tother-"))
    line = mistake("evaluate", "--datasets", letters, "--model", "bm25")
    assert line.startswith(f"{file} row 2: unknown document id 'other-128'")


def test_an_empty_split(mistake: Mistake, letters: Path) -> None:
    (letters / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq128\td128\t0\n")
    line = mistake("evaluate", "--datasets", letters, "--model", "bm25")
    assert line == "letters, split 'test': no query has a relevant document; give a split with judgements above 0"


def test_a_model_without_its_tokenizer(mistake: Mistake, letters: Path, tiny_encoder: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(tiny_encoder, tmp_path / "bare"))
    for file in bare.glob("tokenizer*"):
        file.unlink()
    line = mistake("evaluate", "--datasets", letters, "--model", "bm25", bare)
    assert line == f"{bare}: has no tokenizer; copy tokenizer.json and tokenizer_config.json beside config.json"


def test_an_output_that_holds_something_else(mistake: Mistake, letters: Path, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "results.json").write_text('{"split": "test", "models": {}}')
    line = mistake("evaluate", "--datasets", letters, "--model", "bm25", "--output", "out")
    assert line == (
        "out/results.json: is of an older format, without a number; this version reads format 1; "
        "evaluate again into another directory"
    )
    (work / "out" / "results.json").rename(work / "out" / "notes.txt")
    line = mistake("evaluate", "--datasets", letters, "--model", "bm25", "--output", "out")
    assert line == "--output out: is not empty and holds no evaluation; give another directory"


def test_nothing_below_a_threshold_is_shown(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["what is abc", "--dataset", str(letters), "--model", str(tiny_encoder), "--top", "9"]

    def scores(*more: str) -> list[float]:
        assert run("search", [*words, *more]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return [float(line[0]) for line in lines if len(line) == 2 and line[1].startswith("d")]

    found = scores()
    assert len(found) == 9
    between = (found[3] + found[4]) / 2
    assert found[3] > found[4]
    assert scores("--threshold", str(between)) == found[:4]
    assert run("search", [*words, "--threshold", "7"]) == 0
    assert capsys.readouterr().out == "no passage scores 7 or more\n"


def test_a_threshold_that_is_no_score(mistake: Mistake, letters: Path) -> None:
    assert mistake("search", "x", "--dataset", letters, "--threshold", "nan").startswith("--threshold: is no number")
