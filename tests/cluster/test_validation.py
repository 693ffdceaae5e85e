"""Checkpoints validated during training under a real Ray: logged, used for the choice, and equal after any death."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from processes import of_session, wait_for

from raytriever.training.validation import read_records, read_stop

WORDS = ["--best-metric", "nDCG@10", "--max-steps", "12", "--eval-steps", "3", "--num-workers", "2", "--patience", "9"]


@pytest.fixture
def long_corpus(tiny_dataset: Path, tmp_path: Path) -> Path:
    """The tiny data set with so many further documents that an evaluation takes longer than a step."""
    folder = tmp_path / "long"
    shutil.copytree(tiny_dataset, folder)
    rng = np.random.default_rng(3)
    with (folder / "corpus.jsonl").open("a") as stream:
        for number in range(3_000):
            text = "".join(rng.choice(list("abcdefghij"), 40))
            stream.write(json.dumps({"_id": f"f{number}", "title": "", "text": text}) + "\n")
    return folder


def curves(run: Path) -> dict[str, dict[int, float]]:
    """Return the logged values by name and step; none is logged twice."""
    curve: dict[str, dict[int, float]] = {}
    for line in (run / "steps.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, value in entry["measured"].items():
            assert entry["step"] not in curve.setdefault(name, {}), (name, entry["step"])
            curve[name][entry["step"]] = value
    return curve


def assert_as_in_peace(cli: Any) -> None:
    """Figures, choice and model are those of the run in which nobody died."""
    peace, interrupted = cli.folder / "peace", cli.folder / "interrupted"
    figures = [json.loads((run / "metrics.json").read_text()) for run in (peace, interrupted)]
    assert figures[0] == figures[1]
    both = [curves(run) for run in (peace, interrupted)]
    for name in ("loss", "dev_loss", "dev/ndcg_at_10", "dev/mrr_at_10", "dev/recall_at_100", "dev/auc"):
        assert both[0][name] == both[1][name], name
    assert sorted(both[0]["dev/ndcg_at_10"]) == [3, 6, 9, 12]
    models = [(run / "model" / "model.safetensors").read_bytes() for run in (peace, interrupted)]
    assert models[0] == models[1]
    checkpoints = [{path.name for path in (run / "checkpoints").iterdir()} for run in (peace, interrupted)]
    assert checkpoints[0] == checkpoints[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_best_on_dev_data_becomes_the_model(command_line: Callable, tiny_dataset: Path) -> None:
    cli = command_line()
    # Learning that ruins the encoder: what comes first is best, and training stops early.
    words = ["--best-metric", "ndcg_at_10", "--eval-corpus", "40", "--patience", "2", "--learning-rate", "0.1"]
    done = cli.train(*words, "--max-steps", "40", "--eval-steps", "2", "--output", "run")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "run"
    logged, records, stop = curves(run), read_records(run / "evaluations"), read_stop(run / "evaluations")
    assert stop is not None
    assert stop.at < 40
    assert sorted(logged["loss"]) == list(range(1, stop.at + 1))
    assert logged["dev/ndcg_at_10"] == {record.step: record.value for record in records}
    assert max(logged["dev/ndcg_at_10"]) == stop.decided
    best = json.loads((run / "metrics.json").read_text())["best"]
    values = logged["dev/ndcg_at_10"]
    assert best["step"] == max(sorted(values), key=values.__getitem__)
    assert best == {"metric": "ndcg_at_10", "step": best["step"], "value": values[best["step"]]}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {f"step-{best['step']}", f"step-{stop.at}"}
    for line in (f"step {best['step']}: dev ndcg_at_10 {best['value']:.4f}", "on the cores that train"):
        assert line in done.stderr
    report = (run / "report.html").read_text()
    assert "Metrics of checkpoints on dev data" in report
    assert (run / "figures" / "dev.svg").is_file()
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [tracked] = client.search_runs([e.experiment_id for e in client.search_experiments() if e.name == "raytriever"])
    points = client.get_metric_history(tracked.info.run_id, "dev/ndcg_at_10")
    assert {point.step: point.value for point in points} == values


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_continued_it_is_as_in_peace(command_line: Callable, started: list, long_corpus: Path) -> None:
    cli = command_line()
    words = [*WORDS, "--dataset", str(long_corpus)]
    done = cli.train(*words, "--output", "peace")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "interrupted"
    # Everything dies when one evaluation stands and others are waited for.
    when = lambda: read_records(run / "evaluations") and (run / "checkpoints" / "step-6").is_dir()  # noqa: E731
    cli.end(signal.SIGKILL, when, "train", *cli.settings, *words, "--output", "interrupted", everything=True)
    assert len(read_records(run / "evaluations")) < 4
    assert not (run / "metrics.json").exists()
    # Then the one who evaluates dies, over a checkpoint.
    started.append(cli.start("train", *cli.settings, *words, "--output", "interrupted"))
    before = len(read_records(run / "evaluations"))
    evaluating = wait_for(lambda: of_session(started[0].pid, "ray::CheckpointEvaluator.evaluate"), 200, started[0])
    assert len(evaluating) == 1
    os.kill(evaluating[0], signal.SIGKILL)
    assert len(read_records(run / "evaluations")) <= before + 1
    _, err = started[0].communicate(timeout=250)
    assert started[0].returncode == 0, err
    assert "failed" not in err
    assert "Resumed from checkpoint" in err
    assert_as_in_peace(cli)
