"""`compare` from the command line: user errors, and runs in MLflow."""

from __future__ import annotations

import json
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
    assert set(own.figures["bm25"]["letters"]) == {"ndcg_at_10", "mrr_at_10", "auc"}
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
    assert f"{word!r} is neither a directory nor an MLflow run" in line


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
