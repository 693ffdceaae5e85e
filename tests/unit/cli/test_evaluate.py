"""User errors of `evaluate` end in one line and leave no files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run

ErrorLine = Callable[..., str]
REPOSITORY = Path(__file__).parents[3]


def test_without_mteb_the_extra_is_named(error_line: ErrorLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    line = error_line("evaluate", "--suite", "mteb", "--tasks", "SciFact")
    assert line == "suite mteb: requires the package mteb; install it: pip install 'raytriever[mteb]'"


def test_judgements_of_another_corpus(error_line: ErrorLine, letters: Path) -> None:
    file = letters / "qrels" / "test.tsv"
    file.write_text(file.read_text().replace("\td", "\tother-"))
    line = error_line("evaluate", "--datasets", letters, "--model", "bm25")
    assert line == (
        f"{file} row 2: the judgements seem to belong to another corpus: 32 of 32 rows are bad, the first for an "
        "unknown document id 'other-128'; give the corpus that was judged"
    )


def test_an_empty_split(error_line: ErrorLine, letters: Path) -> None:
    (letters / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq128\td128\t0\n")
    line = error_line("evaluate", "--datasets", letters, "--model", "bm25")
    assert line == "letters, split 'test': no query has a relevant document; give a split with judgements above 0"


def test_an_output_with_other_files(error_line: ErrorLine, letters: Path, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "results.json").write_text('{"split": "test", "models": {}}')
    line = error_line("evaluate", "--datasets", letters, "--model", "bm25", "--output", "out")
    assert line == (
        "out/results.json: has no format number; this version reads format 3; evaluate again into another directory"
    )
    (work / "out" / "results.json").rename(work / "out" / "notes.txt")
    line = error_line("evaluate", "--datasets", letters, "--model", "bm25", "--output", "out")
    assert line == "output out: is not empty and holds no evaluation; give another directory"


def test_passages_below_the_threshold_are_hidden(
    letters: Path, tiny_encoder: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["what is abc", "--dataset", str(letters), "--model", str(tiny_encoder), "--top", "9"]

    def scores(*more: str) -> list[float]:
        assert run("search", [*words, *more]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return [float(line[0]) for line in lines if len(line) == 2 and line[1].startswith("d")]

    result = scores()
    assert len(result) == 9
    between = (result[3] + result[4]) / 2
    assert result[3] > result[4]
    assert scores("--threshold", str(between)) == result[:4]
    assert run("search", [*words, "--threshold", "7"]) == 0
    assert capsys.readouterr().out == "no answer: no passage scores 7 or more\n"


@pytest.mark.slow
def test_a_suite_measures_existing_folders_and_names_the_missing_ones(
    work: Path, letters: Path, tmp_path: Path
) -> None:
    root = tmp_path / "beir"
    for name in ("nfcorpus", "scifact"):
        shutil.copytree(letters, root / name)
    # Nothing can be reached: what is not in the folder is missing.
    nowhere = "http://127.0.0.1:9"
    closed = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "HF_ENDPOINT"), nowhere)
    environment = {**os.environ, **closed, "HF_HUB_OFFLINE": "1", "IR_DATASETS_HOME": str(tmp_path / "ir")}
    words = ["--suite", "beir", "--data-root", str(root), "--model", "bm25", "--output", "out"]
    command = [sys.executable, str(REPOSITORY / "jobs" / "evaluate.py"), *words]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((work / "out" / "results.json").read_text())
    assert list(results["models"]["bm25"]) == ["nfcorpus", "scifact"]
    missing = [line.split(" ")[0] for line in results["missing"]]
    assert len(missing) == 13
    assert {"msmarco", "cqadupstack", "fever"} <= set(missing)
    # Loudly: at the beginning, at the end, in the table and on the page.
    assert done.stderr.count("MISSING: ") == 13
    assert done.stdout.count("MISSING: ") == 13
    for file in ("table.md", "report.html"):
        assert f"fiqa (no folder {root}/fiqa" in (work / "out" / file).read_text()
    # Where nothing is there, nothing is written.
    words[3] = str(work)
    done = subprocess.run(
        [*command[:2], *words[:-1], "none"], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: data_root {work}: no data set of the suite exists")
    assert not (work / "none").exists()
