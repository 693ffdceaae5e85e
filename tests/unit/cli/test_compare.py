"""`compare` from the command line: user errors, and runs in MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raytriever.cli.main import run
from raytriever.tracking.mlflow_tracker import MlflowServer, tracking_uri
from raytriever.tracking.tracker import DatasetRecord, Point

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
        tracker.describe({"loss": {"loss": loss}}, DatasetRecord("letters", "here", "0" * 32, {}), {})
        points = [Point("loss", 1 / step + number, step, step) for step in range(1, 9)]
        points += [Point(f"{system}/ndcg_at_10", 0.3 + number / 10, 8, 9) for system in ("before", "after")]
        tracker.log(points)
        actual = {name: {"metrics": {"ndcg_at_10": values(name, number)}, "top": [[]] * 40} for name in SYSTEMS}
        whole = {"queries": QUERIES, "texts": QUERIES, "relevant": [[]] * 40, "models": actual}
        (work / "per_query").mkdir(exist_ok=True)
        (work / "per_query" / "letters.json").write_text(json.dumps(whole))
        if number < 2:  # an older version kept none
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
    wanted = "metrics.`after/ndcg_at_10` > 0.35 and metrics.`after/ndcg_at_10` < 0.45"
    assert run("compare", [wanted, "--output", "one.html"]) == 0
    assert "1 runs: run of infonce." in Path("one.html").read_text()
    capsys.readouterr()
    for word, expected in (
        (ID, f"does not know the run '{ID}'"),
        (empty.run_id, "has no metrics; give a finished run"),
        ("metrics.nothing = ", "does not understand"),
        ("metrics.nothing > 3", "no finished run matches"),
    ):
        assert run("compare", [word, "--output", "two.html"]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert err.count("\n") == 1
    assert not Path("two.html").exists()
