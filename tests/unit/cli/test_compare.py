"""`compare` and `evaluate` from the command line: user errors, and runs in MLflow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evaluations import about_of, write_evaluation

from raytriever.cli.main import run
from raytriever.evaluation.results import Results
from raytriever.experiments.report.comparison_request import check_comparison
from raytriever.experiments.report.finished_runs import MlflowRuns, read_directory
from raytriever.tracking.mlflow_tracker import MlflowServer, tracking_uri
from raytriever.tracking.tracker import COMMAND, DatasetRecord, Point

ErrorLine = Callable[..., str]
ID = "0123456789abcdef" * 2
SYSTEMS = ("bm25", "before", "after")
QUERIES = [f"q{number}" for number in range(40)]


def values(system: str, number: int) -> list[float]:
    """Metrics of each query; a later training is better for all queries."""
    gain = 0.05 * number * (system == "after")
    return [(7 * index % 11) / 20 + gain * (1 + index % 3) for index in range(40)]


@pytest.mark.slow
def test_runs_that_mlflow_keeps(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = []
    for number, loss in enumerate(("mw", "infonce", "older")):
        tracker = MlflowServer(tracking_uri()).connect(f"run of {loss}")
        tracker.describe({"loss": {"loss": loss}}, DatasetRecord("letters", "here", "0" * 32, {}), {COMMAND: "train"})
        points = [Point("loss", 1 / step + number, step, step) for step in range(1, 9)]
        points += [Point("after/letters/ndcg_at_10", 0.3 + number / 10, 0, 9)]
        tracker.log(points)
        actual = {name: {"metrics": {"ndcg_at_10": values(name, number)}, "top": [[]] * 40} for name in SYSTEMS}
        whole = {"dataset": "letters", "queries": QUERIES, "texts": QUERIES, "relevant": [[]] * 40, "models": actual}
        (work / "per_query").mkdir(exist_ok=True)
        (work / "per_query" / "letters.json").write_text(json.dumps(whole))
        models = {name: {"letters": {"ndcg_at_10": 0.3 + number / 10}} for name in SYSTEMS}
        Results(models=models, about={"letters": about_of(40)}).write(work)
        tracker.log_file(work / "results.json")
        if number < 2:  # the artifacts of the last one are incomplete
            tracker.log_file(work / "per_query")
        tracker.finish("FINISHED")
        ids.append(tracker.run_id)
    empty = MlflowServer(tracking_uri()).connect("empty")
    empty.finish("FAILED")
    capsys.readouterr()
    assert run("compare", [*ids, "--output", "page.html"]) == 0
    assert "Downloading" not in capsys.readouterr().err
    text = Path("page.html").read_text()
    for shown in (">run of mw<", ">run of infonce<", ">0.4000<", "loss.loss", ", letters<", "Loss of every step"):
        assert shown in text
    # What was found for every query is tested, of the runs that kept it.
    assert text.count(">run of mw</td>") >= 2
    assert ">&lt;0.0001<" in text
    shown = json.loads(text.split('id="data">')[1].split("</script>")[0])["queries"]
    assert set(shown["letters"]["models"]) >= {"run of mw", "run of infonce"}
    assert "run of older" not in shown["letters"]["models"]
    wanted = "metrics.`after/letters/ndcg_at_10` > 0.35 and metrics.`after/letters/ndcg_at_10` < 0.45"
    assert run("compare", [wanted, "--output", "one.html"]) == 0
    assert "1 runs: run of infonce." in Path("one.html").read_text()
    capsys.readouterr()
    for word, expected in (
        (ID, f"does not know the run '{ID}'"),
        (empty.run_id, "is not a finished training or evaluation; give another run"),
        ("metrics.nothing = ", "does not understand"),
        ("metrics.nothing > 3", "no finished training or evaluation matches"),
    ):
        assert run("compare", [word, "--output", "two.html"]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert err.count("\n") == 1
    assert not Path("two.html").exists()


def test_an_evaluation_in_mlflow_is_read_as_its_directory_and_a_sweep_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_evaluation(work / "results", datasets=["letters"], queries=8)
    tracker = MlflowServer(tracking_uri()).connect("results")
    tracker.describe({"split": "test"}, None, {COMMAND: "evaluate"})
    # Metrics of this form are bounds and tests, no metrics of a model on a data set.
    names = ("bm25/letters/auc", "bm25/letters/auc_low", "bm25/letters/auc_high", "significance/mini-bm25/letters_p")
    tracker.log([Point(name, 0.5, 0, 9) for name in names])
    for name in ("results.json", "per_query"):
        tracker.log_file(folder / name)
    tracker.finish("FINISHED")
    sweep = MlflowServer(tracking_uri()).connect("sweep")
    sweep.describe({}, None, {COMMAND: "tune"})
    sweep.log([Point("trial/ndcg_at_10", 0.5, 0, 9)])
    sweep.finish("FINISHED")
    own, stored = MlflowRuns().by_id(tracker.run_id), read_directory(folder, "results")
    assert own == stored
    assert set(own.metrics["bm25"]["letters"]) == {"ndcg_at_10", "mrr_at_10", "auc"}
    assert [run.name for run in MlflowRuns().by_filter("metrics.`bm25/letters/auc` > 0")] == ["results"]
    capsys.readouterr()
    for word, expected in (
        (sweep.run_id, f"run {sweep.run_id} is a sweep; give its trials by the filter \"tags.mlflow.parentRunId = '"),
        ("tags.`raytriever.command` = 'tune'", "no finished training or evaluation matches"),
    ):
        assert run("compare", [word, "--output", "two.html"]) == 2
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "word", ["studies/mw-in-domain/variants/mw/sed-0", "my runs in may/one", "runs/lr=2e-5", "runs/is it", "a like b"]
)
def test_a_mistyped_path_is_no_filter(error_line: ErrorLine, word: str) -> None:
    line = error_line("compare", word, "--output", "page.html")
    assert f"{word!r} is neither a directory nor an id or filter of MLflow runs" in line


@pytest.mark.parametrize(
    "word",
    [
        "params.loss.loss = 'mw'",
        "tags.`mlflow.parentRunId`='0'",
        "status IN ('FINISHED')",
        "params.x IS NULL",
        "metrics.`after/letters/ndcg_at_10` > 0.5",
        "attributes.run_name LIKE '%mw%'",
        "run_name ilike '%a%'",
        "param.a != 'b'",
    ],
)
def test_a_filter_is_known(word: str, tmp_path: Path) -> None:
    check_comparison([word], tmp_path / "page.html")


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
