"""Checkpoints validated during training under a real Ray: logged, used for the choice, and equal after any death."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from raytriever.training.validation import read_records


def curves(run: Path) -> dict[str, dict[int, float]]:
    """Return the logged values by name and step; none is logged twice."""
    curve: dict[str, dict[int, float]] = {}
    for line in (run / "steps.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, value in entry["measured"].items():
            assert entry["step"] not in curve.setdefault(name, {}), (name, entry["step"])
            curve[name][entry["step"]] = value
    return curve


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_best_on_dev_data_becomes_the_model(command_line: Callable, tiny_dataset: Path) -> None:
    cli = command_line()
    # Learning that ruins the encoder: what comes first is best, and training stops early.
    words = ["--best-metric", "ndcg_at_10", "--eval-corpus", "40", "--patience", "2", "--learning-rate", "0.1"]
    done = cli.train(*words, "--max-steps", "40", "--eval-steps", "2", "--output", "run")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "run"
    logged, records = curves(run), read_records(run / "evaluations")
    last = max(logged["loss"])
    assert sorted(logged["loss"]) == list(range(1, last + 1))
    assert last < 40
    assert logged["dev/ndcg_at_10"] == {record.step: record.value for record in records}
    best = json.loads((run / "metrics.json").read_text())["best"]
    values = logged["dev/ndcg_at_10"]
    assert best["step"] == max(sorted(values), key=values.__getitem__)
    assert best == {"metric": "ndcg_at_10", "step": best["step"], "value": values[best["step"]]}
    assert {path.name for path in (run / "checkpoints").glob("step-*")} == {f"step-{best['step']}", f"step-{last}"}
    for line in (f"step {best['step']}: dev ndcg_at_10 {best['value']:.4f}", "on the cores that train"):
        assert line in done.stderr
    report = (run / "report.html").read_text()
    assert "Metrics of checkpoints on dev data" in report
    assert (run / "figures" / "dev.svg").is_file()
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [tracked] = client.search_runs([e.experiment_id for e in client.search_experiments() if e.name == "raytriever"])
    points = client.get_metric_history(tracked.info.run_id, "dev/ndcg_at_10")
    assert {point.step: point.value for point in points} == values
