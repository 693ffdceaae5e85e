"""Training under a real Ray, from the command line to what lies in the run directory and in MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import yaml
from mlflow import MlflowClient
from processes import steps

from raytriever.core.store.commit import read_manifest
from raytriever.evaluation.protocol import metric_title
from raytriever.evaluation.results import Results


def test_a_run_on_two_workers_from_the_command_to_the_report(command_line: Callable) -> None:
    cli = command_line()
    prompt = {"query": "letters of: ", "passage": "spelled: "}
    (cli.folder / "run.yaml").write_text(yaml.safe_dump({"model": {"dataset_prompts": {"letters": prompt}}}))
    done = cli.train("--config", "run.yaml", "--max-steps", "6", "--num-workers", "2", "--output", "run")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "run"

    # The run directory holds what it promises, and the table shows it.
    results = Results.read(run / "evaluation")
    assert results.about["letters"].split == "test"
    figures = {name: sets["letters"] for name, sets in results.models.items()}
    assert figures["after"]["ndcg_at_10"] > figures["before"]["ndcg_at_10"]
    table = [line.split() for line in done.stdout.splitlines() if re.match("(bm25|before|after) ", line)]
    assert [float(row[-1].rstrip("+-")) for row in table] == [round(figure["auc"], 4) for figure in figures.values()]
    assert all(metric_title(name) in done.stdout for name in figures["after"])
    assert re.search(r"mlflow ui --backend-store-uri \S+  \(then open http://\S+/#/experiments/1/runs\)", done.stdout)
    assert "raytriever search" in done.stdout
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["num_workers"] == 2
    for name in (
        *(f"evaluation/runs/{system}/letters.trec" for system in ("bm25", "before", "after")),
        "figures/roc.letters.png",
        "report.html",
    ):
        assert (run / name).stat().st_size > 500, name
    assert sorted(path.name for path in (run / "checkpoints").iterdir())
    read_manifest(run / "model")
    saved = json.loads((run / "model" / "config_sentence_transformers.json").read_text())["prompts"]
    assert set(prompt.values()) <= set(saved.values())
    assert sorted(step for step, metrics in steps(run).items() if "loss" in metrics) == [1, 2, 3, 4, 5, 6]

    # MLflow has the settings, the data, every step once, the end's figures and the files.
    client = MlflowClient(cli.environment["MLFLOW_TRACKING_URI"])
    [experiment] = [e for e in client.search_experiments() if e.name == "raytriever"]
    [tracked] = client.search_runs([experiment.experiment_id])
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["loss.loss"] == "mw"
    assert tracked.data.params["model.pooling"] == "mean"
    assert tracked.data.tags["raytriever.command"] == "train"
    assert tracked.data.metrics["after/letters/auc"] == pytest.approx(figures["after"]["auc"])
    history = client.get_metric_history(tracked.info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]
    # MLflow draws what has step 0 alone as bars.
    for name in ("bm25/letters/ndcg_at_10", "after/letters/auc", "significance/after-before/letters/auc_p"):
        assert [point.step for point in client.get_metric_history(tracked.info.run_id, name)] == [0]
    [fed] = tracked.inputs.dataset_inputs
    assert json.loads(fed.dataset.profile)["train_queries"] == 96
    assert {file.path for file in client.list_artifacts(tracked.info.run_id)} >= {"model", "figures", "report.html"}


@pytest.mark.slow
def test_a_mistake_that_only_a_worker_meets_ends_in_one_line(command_line: Callable) -> None:
    cli = command_line()
    done = cli.train("--max-steps", "30", "--learning-rate", "1e30", "--warmup-steps", "0", "--output", "run")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "NaN" in last or "nan" in last or "inf" in last
    assert not (cli.folder / "run" / "metrics.json").exists()
